# SPDX-License-Identifier: Apache-2.0
"""A run spec while it is built from another program's file: raw values by section, and notes about the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from harness.findings import Place
from harness.spec.parse.source import KeyPath

NoteKind = Literal["manual", "lossy", "harmless"]
"""`manual`: to be set by hand in the spec. `lossy`: the spec trains something else than the file. `harmless`: nothing
of it decides what is trained.
"""
HEADINGS: dict[NoteKind, str] = {
    "manual": "To be set by hand",
    "lossy": "Trained differently from the file",
    "harmless": "Without effect on what is trained",
}


@dataclass(frozen=True)
class Note:
    """A key of the file that the run spec does not have as it is; `key` is its name in the file."""

    place: Place
    message: str
    kind: NoteKind = "manual"
    key: str = ""

    @property
    def is_plain(self) -> bool:
        """Is the message the key alone, with nothing to say about it?"""
        return self.message[:1] == self.message[-1:] == "`" and self.message.count("`") == 2

    def __str__(self) -> str:
        return f"{self.place.file}:{self.place.line}: {self.message}"


@dataclass
class Draft:
    """A run spec under construction: raw values by section, remarks behind them, and notes."""

    spec: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    """Dotted key -> the comment behind its value, such as the program whose default it is."""
    files: dict[str, str] = field(default_factory=dict)
    """Files that the spec names and that belong beside it: name -> text."""

    def get(self, key: str) -> Any:
        """The value of a dotted key; None if it has none."""
        value: Any = self.spec
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def has(self, key: str) -> bool:
        """Is a dotted key there, if only as None, which says that no default belongs to it?"""
        *sections, name = key.split(".")
        block = self.get(".".join(sections)) if sections else self.spec
        return isinstance(block, dict) and name in block

    def put(self, key: str, value: Any, remark: str = "") -> None:
        """Set a dotted key."""
        *sections, name = key.split(".")
        block = self.spec
        for section in sections:
            inner = block.setdefault(section, {})
            if not isinstance(inner, dict):
                inner = block[section] = {}
            block = inner
        block[name] = value
        if remark:
            self.remarks[key] = remark
        else:
            self.remarks.pop(key, None)

    def drop(self, path: KeyPath) -> None:
        """Remove a key, and the sections that it leaves empty."""
        block: Any = self.spec
        for part in path[:-1]:
            block = block.get(part) if isinstance(block, dict) else None
        if isinstance(block, dict):
            block.pop(path[-1], None)
            if not block and len(path) > 1:
                self.drop(path[:-1])

    def add_note(self, place: Place, message: str, kind: NoteKind = "manual", key: str = "") -> None:
        """Add a note for the comments."""
        self.notes.append(Note(place, message, kind, key))
