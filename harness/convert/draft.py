"""A run spec while it is built from another program's file: raw values by section, and notes about the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.findings import Place
from harness.spec.parse.source import KeyPath


@dataclass(frozen=True)
class Note:
    """Something of the file that the run spec does not say, or says with a value of our choice."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place.file}:{self.place.line}: {self.message}"


@dataclass
class Draft:
    """A run spec in the making: raw values by section, and notes."""

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
        """Take a key out, and sections that are empty then."""
        block: Any = self.spec
        for part in path[:-1]:
            block = block.get(part) if isinstance(block, dict) else None
        if isinstance(block, dict):
            block.pop(path[-1], None)
            if not block and len(path) > 1:
                self.drop(path[:-1])

    def add_note(self, place: Place, message: str) -> None:
        """Remember something for the comments."""
        self.notes.append(Note(place, message))
