# SPDX-License-Identifier: Apache-2.0
"""Findings about a run spec, as plain values.

Nothing here formats or prints; `harness.views` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning", "info"]
Upstream = Literal["raises", "asserts", "silent", "hangs", "wrong", "crashes"]
LinesOf = Callable[[str], Sequence[str]]
"""The lines of a file by its name, to quote from; none for a file that was not read."""

_SEVERITY_RANK: dict[str, int] = {"error": 0, "warning": 1, "info": 2}


class Place(NamedTuple):
    """A place in a file: `line` and `column` count from 1, `length` is in characters (0: unknown)."""

    file: str
    line: int
    column: int
    length: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def to_json(self) -> dict[str, Any]:
        """The place as plain values."""
        return {"file": self.file, "line": self.line, "column": self.column, "length": self.length}


class Label(NamedTuple):
    """A place, and a text to print under it."""

    place: Place
    text: str


class Fix(NamedTuple):
    """The fix of a finding.

    `sets` maps dotted spec keys to their new value (None: remove the key). `safe` means that the run trains, fits and
    stores the same (`harness.gates.fix_safety`); otherwise `effect` describes the change.
    """

    title: str
    sets: Mapping[str, Any] = {}
    safe: bool = False
    effect: str = ""


class Finding(NamedTuple):
    """An error or a remark, with its place and its fix."""

    gate: str
    severity: Severity
    message: str
    key: str = ""
    place: Place | None = None
    label: str = ""
    related: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    fix: Fix | None = None

    @property
    def is_error(self) -> bool:
        """Does it stop a launch?"""
        return self.severity == "error"

    def to_json(self) -> dict[str, Any]:
        """The finding as plain values."""
        fix = self.fix
        return {
            "gate": self.gate,
            "severity": self.severity,
            "message": self.message,
            "key": self.key,
            "place": self.place.to_json() if self.place else None,
            "label": self.label,
            "related": [{"place": label.place.to_json(), "text": label.text} for label in self.related],
            "notes": list(self.notes),
            "fix": {"title": fix.title, "sets": dict(fix.sets), "safe": fix.safe, "effect": fix.effect}
            if fix
            else None,
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Finding:
        """Of what `to_json` writes, all but places and what the fix sets."""
        fix = Fix(body["fix"]["title"]) if body["fix"] else None
        return Finding(body["gate"], body["severity"], body["message"], body["key"], notes=(*body["notes"],), fix=fix)


UNREADABLE_KEYS = "keys that cannot be read"
"""The value that a gate lacks that depends on a key with a mistake."""


class SkippedGate(NamedTuple):
    """A gate that could not run, and the input that it lacks."""

    gate: str
    needs: str


class Report(NamedTuple):
    """The findings in one file, in reading order, and the number of gates that ran.

    The file itself suppresses `ignored`, `--select` and `--ignore` suppress `left_out`, and `--fix` has fixed `fixed`.
    """

    file: str
    findings: tuple[Finding, ...] = ()
    checked: int = 0
    skipped: tuple[SkippedGate, ...] = ()
    ignored: tuple[Finding, ...] = ()
    left_out: tuple[Finding, ...] = ()
    fixed: tuple[Finding, ...] = ()
    consumer: str | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that stop a launch."""
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are worth a look."""
        return tuple(f for f in self.findings if f.severity == "warning")

    @property
    def ok(self) -> bool:
        """Is there no error?"""
        return not self.errors

    def to_json(self) -> dict[str, Any]:
        """The content of `findings.json`: the findings of the file, and the gates that were checked and skipped."""
        return {
            "file": self.file,
            "ok": self.ok,
            "consumer": self.consumer,
            "findings": [finding.to_json() for finding in self.findings],
            "fixed": [finding.to_json() for finding in self.fixed],
            "ignored": [finding.to_json() for finding in self.ignored],
            "left_out": [finding.to_json() for finding in self.left_out],
            "gates_checked": self.checked,
            "gates_skipped": [{"gate": s.gate, "needs": s.needs} for s in self.skipped],
        }


class CheckOutcome(NamedTuple):
    """The outcome of one call: a report for each file, the DeepSpeed release, and the origin of that choice.

    `general` are findings about the call, not about a file; `passed_over` are files in folders that are no specs.
    """

    reports: tuple[Report, ...]
    deepspeed: str = ""
    origin: str = ""
    general: tuple[Finding, ...] = ()
    passed_over: tuple[str, ...] = ()
    code: int = 0


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorted by place in the file, then by severity: the reader is in the file."""

    def rank(f: Finding) -> tuple[int, int, int, str]:
        line, column = (f.place.line, f.place.column) if f.place else (1 << 30, 0)
        return (line, column, _SEVERITY_RANK[f.severity], f.gate)

    return tuple(sorted(findings, key=rank))
