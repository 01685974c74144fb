"""What the harness has to say about a run spec: findings as plain values.

Nothing here formats or prints; `harness.views` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning", "info"]
Upstream = Literal["raises", "asserts", "silent", "hangs", "wrong", "crashes"]

_SEVERITY_RANK: dict[str, int] = {"error": 0, "warning": 1, "info": 2}


class Place(NamedTuple):
    """Where something is written: `line` and `column` count from 1, `length` is in characters (0: unknown)."""

    file: str
    line: int
    column: int
    length: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Label(NamedTuple):
    """A place with a few words that belong under it."""

    place: Place
    text: str


class Fix(NamedTuple):
    """How to mend a finding.

    `sets` maps dotted spec keys to their new value (None: remove the key). `safe` means that the same thing is trained
    afterwards, that no tier of offload and no path changes, and that a written value is replaced only where DeepSpeed
    refuses it or nothing reads it; where it is not, `effect` says what changes.
    """

    title: str
    sets: Mapping[str, Any] = {}
    safe: bool = False
    effect: str = ""


class Finding(NamedTuple):
    """One thing that is wrong, or worth knowing, with where it is and how to mend it."""

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


class SkippedGate(NamedTuple):
    """A gate that could not look, and what it would have needed."""

    gate: str
    needs: str


class Report(NamedTuple):
    """Everything that was found in one file: findings in reading order, and how much was looked at.

    `ignored` are put up with by the file itself, `left_out` by `--select` and `--ignore`, `fixed` by `--fix`.
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


class CheckOutcome(NamedTuple):
    """What became of one call: a report a file, against which DeepSpeed and why that one.

    `general` are findings about the call, not about a file; `passed_over` are files in folders that are something else.
    """

    reports: tuple[Report, ...]
    deepspeed: str = ""
    origin: str = ""
    general: tuple[Finding, ...] = ()
    passed_over: tuple[str, ...] = ()
    code: int = 0


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorted by where they are in the file, then by severity: the reader is in the file."""

    def rank(f: Finding) -> tuple[int, int, int, str]:
        line, column = (f.place.line, f.place.column) if f.place else (1 << 30, 0)
        return (line, column, _SEVERITY_RANK[f.severity], f.gate)

    return tuple(sorted(findings, key=rank))
