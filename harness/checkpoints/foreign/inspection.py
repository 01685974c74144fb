# SPDX-License-Identifier: Apache-2.0
"""The answer about a folder with a checkpoint of any program: facts, problems, uses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.file_io import read_regular

OWN = "a checkpoint of `harness launch`"
_MAX_JSON = 1 << 26


@dataclass
class Inspection:
    """The answer about a folder. `facts`: lines by title; `problems`: what is missing or damaged; `unknown`: what
    nothing in the folder says; `uses`: commands, each with what it does.
    """

    folder: Path
    kind: str = "no checkpoint"
    facts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    uses: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def is_checkpoint(self) -> bool:
        """Is there anything to load?"""
        return self.kind != "no checkpoint"

    @property
    def is_whole(self) -> bool | None:
        """Has it all files that belong to it, and none of another save? None where nothing in it says so."""
        if not self.is_checkpoint or self.problems:
            return False
        return None if self.unknown else True

    def add(self, title: str, value: Any) -> None:
        """Note a fact; the first of a title counts, and what is no text or number is none."""
        if isinstance(value, str | int | float):
            self.facts.setdefault(title, str(value)[:300])

    def read_json(self, name: str) -> Mapping[str, Any] | None:
        """The object in a JSON file of the folder; a problem, and None, where there is none."""
        try:
            body = json.loads(read_regular(self.folder / name, _MAX_JSON))
        except (OSError, ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            self.problems.append(f"`{name}` cannot be read")
            return None
        return body

    def to_json(self) -> dict[str, Any]:
        """The values for programs."""
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "whole": self.is_whole,
            "facts": self.facts,
            "problems": self.problems,
            "not_known": self.unknown,
            "uses": [{"command": command, "does": text} for command, text in self.uses],
        }


def lines_of(found: Inspection) -> Iterator[str]:
    """The text for people: what it is, facts, problems, what can be done."""
    yield f"{found.folder}: {found.kind}"
    width = max((len(title) for title in found.facts), default=0)
    for title, value in found.facts.items():
        yield f"  {title:<{width}}  {value}"
    state = {True: "whole: no file is missing or short", False: "not whole", None: "whole as far as it can be told"}
    if found.is_checkpoint:
        yield state[found.is_whole]
    yield from (f"  {problem}" for problem in found.problems)
    yield from (f"  not known: {text}" for text in found.unknown)
    for command, text in found.uses:
        yield f"{text}:\n    {command}"
