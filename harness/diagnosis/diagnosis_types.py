"""The values of a diagnosis: what a cause is, what was seen of it in a log, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Confidence = Literal["certain", "likely", "unknown"]
DiagnosisState = Literal["failed", "completed", "stopped", "no failure seen", "empty", "not text"]
EventLevel = Literal["root", "echo", "end", "hint"]
"""What a line is to the failure: its beginning; what other ranks say when a peer is gone; what the launcher says at the
end; or something that explains nothing by itself and adds to what does."""


@dataclass(frozen=True, slots=True)
class FailureSignature:
    """A line by which a cause is known: a regular expression on the line without its prefixes.

    `sure` says that the words allow no other reading. `frames` must be found in the files or functions of the traceback
    above; a line without a traceback is taken for it all the same, not as sure, unless the frames are `needed`.
    """

    pattern: str
    sure: bool = True
    frames: str = ""
    frames_required: bool = False


@dataclass(frozen=True, slots=True)
class FailureCause:
    """One way in which jobs end: `title` is what happened, `change` what to do about it, `page` says it at length."""

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
    """One `File "x.py", line 3, in f` of a traceback."""

    file: str
    line: int
    function: str


@dataclass(slots=True)
class LogEvent:
    """A line of the log that tells of a failure. `order` counts lines from 1; `time` is seconds, comparable within one
    log only; `progress` is how many signs of progress stood above it in its log, `log` which of several that is.
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
    """The answer: `cause` is the id of a gate, a finding or a known cause; empty where it is unknown.

    `lines` are the lines that matter, with their numbers; `notes` what else was seen.
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
