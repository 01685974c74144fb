# SPDX-License-Identifier: Apache-2.0
"""A run spec while it is built from another program's file: raw values by section, and notes about the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.findings import Place
from harness.spec.parse.source import KeyPath


@dataclass(frozen=True)
class Note:
    """Something in the file that the run spec leaves out, or has with a value of our choice."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place.file}:{self.place.line}: {self.message}"


@dataclass
class Draft:
    """A run spec under construction: raw values by section, and notes."""

    spec: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The value of a dotted key; None where it has none."""
        value: Any = self.spec
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def put(self, key: str, value: Any) -> None:
        """Set a dotted key."""
        *sections, name = key.split(".")
        block = self.spec
        for section in sections:
            block = block.setdefault(section, {})
        block[name] = value

    def drop(self, path: KeyPath) -> None:
        """Remove a key, and the sections that it leaves empty."""
        block: Any = self.spec
        for part in path[:-1]:
            block = block.get(part) if isinstance(block, dict) else None
        if isinstance(block, dict):
            block.pop(path[-1], None)
            if not block and len(path) > 1:
                self.drop(path[:-1])

    def add_note(self, place: Place, message: str) -> None:
        """Add a note for the comments."""
        self.notes.append(Note(place, message))
