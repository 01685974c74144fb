# SPDX-License-Identifier: Apache-2.0
"""The values of a diagnosis: causes, the events of a log, and the diagnosis itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.verdicts import Verdict

Confidence = Literal["certain", "likely", "unknown"]
DiagnosisState = Literal["failed", "completed", "stopped", "no failure seen", "empty", "not text"]
EventLevel = Literal["root", "echo", "end", "hint"]
"""`root`: the first failure. `echo`: other ranks lost a peer. `end`: the launcher reports the end. `hint`:
explains nothing by itself, and adds to another cause."""


@dataclass(frozen=True, slots=True)
class FailureSignature:
    """A pattern for the line of a cause, without the line's prefixes.

    `sure`: the pattern allows no other cause. `frames` must match the files or functions of the traceback above. A line
    without a traceback matches too, but is not sure; with `frames_required` it does not match.
    """

    pattern: str
    sure: bool = True
    frames: str = ""
    frames_required: bool = False


@dataclass(frozen=True, slots=True)
class FailureCause:
    """One cause of failures: `title` names the failure, `change` its remedy, `page` explains both at length."""

    id: str
    name: str
    title: str
    change: str
    signatures: tuple[FailureSignature, ...]
    level: EventLevel = "root"
    page: str = ""

    @property
    def text(self) -> str:
        """The page that `harness explain ID` prints."""
        page = f" {self.page}" if self.page else ""
        source = "Found in logs by `harness explain --log`."
        return f"{self.title[0].upper()}{self.title[1:]}.{page}\n\nWhat to change: {self.change}.\n\n{source}"


@dataclass(frozen=True, slots=True)
class Frame:
    """One `File "x.py", line 3, in f` of a traceback, and the source line below it."""

    file: str
    line: int
    function: str
    code: str = ""


@dataclass(slots=True)
class LogEvent:
    """A line of the log that reports a failure. `line_number` counts from 1. `time` is in seconds, comparable within
    one log only. `progress` counts the signs of progress above it in its log, whose index is `log_index`.
    """

    line_number: int
    text: str
    cause: str
    level: EventLevel
    sure: bool
    host: str = ""
    rank: int | None = None
    time: float | None = None
    has_own_time: bool = False
    progress: int = 0
    log_index: int = 0
    frames: tuple[Frame, ...] = ()
    more: tuple[str, ...] = ()
    is_uncaught: bool = False
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis. `cause` is the id of a gate, a finding or a known cause; empty where it is unknown.

    `lines` are the relevant lines with their numbers; `notes` are other observations.
    """

    state: DiagnosisState
    confidence: Confidence = "unknown"
    cause: str = ""
    title: str = ""
    message: str = ""
    change: str = ""
    rank: int | None = None
    host: str = ""
    line: int = 0
    where: str = ""
    lines: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()
    num_lines: int = 0
    num_bytes: int = 0
    ranks: tuple[int, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    """The verdict of the run's supervisor, which names rank, host, signal and step; None for other logs."""
