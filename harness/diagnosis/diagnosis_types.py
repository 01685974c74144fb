# SPDX-License-Identifier: Apache-2.0
"""The values of a diagnosis: causes, the events of a log, and the diagnosis itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from harness.verdicts import Verdict

Confidence = Literal["certain", "likely", "unknown"]
DiagnosisState = Literal["failed", "completed", "stopped", "no failure seen", "empty", "not text"]
Action = Literal["retry", "retry elsewhere", "change and retry", "stop"]
"""The next thing to do with a failed job. `stop`: the same input fails again, and a person has to look."""
EventLevel = Literal["root", "echo", "end", "hint"]
"""`root`: the first failure. `echo`: other ranks lost a peer. `end`: the launcher reports the end. `hint`:
explains nothing by itself, and adds to another cause."""


STOP_CAUSE = "LG069"
"""The job was asked to stop. A hint of it is the line with which a launcher begins to end its ranks."""


@dataclass(frozen=True, slots=True)
class FailureSignature:
    """A pattern for the line of a cause, without the line's prefixes.

    `sure`: the pattern allows no other cause. `frames` must match the files or functions of the traceback above. A line
    without a traceback matches too, but is not sure; with `frames_required` it does not match. With `last_frame` the
    last one of the traceback must match. `title` and `change` are those of this message, where it says more than its
    cause. `proves_change`: the message alone tells the remedy, also where the cause is `open-change`.
    """

    pattern: str
    sure: bool = True
    proves_change: bool = False
    frames: str = ""
    frames_required: bool = False
    last_frame: bool = False
    title: str = ""
    change: str = ""


@dataclass(frozen=True, slots=True)
class FailureCause:
    """One cause of failures: `title` names the failure, `change` its remedy, `page` explains both at length.

    `traits`: `weak-end` (launchers and schedulers report any end with it, and an echo says more), `silent` (the job
    survives it, but its result is worthless), `recoverable` (silent only while it lasts), `in-warnings` (also found in
    lines that are warnings), `hardware` and `gpu-symptom` (a report of the first explains the second), `may-pass`
    (another attempt may get further), `waits-for-space` (another attempt needs free disk space), `open-change` (the
    remedy depends on what no log shows: likely at most, unless the message proves it), `shared` (its answers say which
    of its many messages it was), `lacks-name` (a name or a word may be missing because of the release of Python).
    `order`: among competing causes of its level the least comes first; None comes last.
    `decision`: what to do next; empty where `diagnosis.decision` derives it.
    """

    id: str
    name: str
    title: str
    change: str
    signatures: tuple[FailureSignature, ...]
    level: EventLevel = "root"
    page: str = ""
    traits: frozenset[str] = frozenset()
    order: int | None = None
    decision: Action | Literal[""] = ""

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


_LAUNCHER = re.compile(
    r"/bin/(?:accelerate|torchrun|deepspeed)$|torch/distributed/(?:run|launcher|elastic)|accelerate/commands/"
    r"|deepspeed/launcher/"
)
STANDARD = re.compile(r"^<|/lib/python3[^/]*/(?!(?:site|dist)-packages/)")


def shows_rank(frames: Sequence[Frame]) -> bool:
    """Does a traceback tell where a rank stood? That of a launcher does not."""
    own = [frame for frame in frames if not STANDARD.search(frame.file)] or frames
    return any(not _LAUNCHER.search(frame.file) for frame in own)


class PhaseMark(NamedTuple):
    """The last phase that lines show: its name, the last step, whether the log shows a finished step, and whether it
    shows a progress bar without a name, which may be that of training. `order` counts the marks of a log. `total` is
    that of the first such bar, or of the steps; `is_at_end`: training stood at it.
    """

    name: str = ""
    step: int | None = None
    order: int = 0
    has_trained: bool = False
    has_bar: bool = False
    total: int = 0
    is_at_end: bool = False


NO_PHASE = PhaseMark()


@dataclass(slots=True)
class LogFacts:
    """The facts that a log, or several merged logs, state about the job. `versions` is by package, `config` the
    text of the JSON that DeepSpeed printed; numbers are 0 where the log has none.
    """

    versions: dict[str, str] = field(default_factory=dict)
    config: str = ""
    config_files: list[str] = field(default_factory=list)
    world_size: int = 0
    num_parameters: int = 0

    def merge(self, other: LogFacts) -> None:
        """Add the facts of another log of the job, where this one has none."""
        self.versions = {**other.versions, **self.versions}
        self.config = self.config or other.config
        self.config_files += [file for file in other.config_files if file not in self.config_files]
        self.world_size = self.world_size or other.world_size
        self.num_parameters = max(self.num_parameters, other.num_parameters)


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
    title: str = ""
    change: str = ""
    """Of the message, where it says more than its cause."""
    pattern: str = ""
    phase: PhaseMark = NO_PHASE
    """The last phase that lines above it show."""
    attempt: int = 0
    """Restarts of the job before it."""
    proves_change: bool = False
    num_ends: int = 0
    num_retries: int = 0
    """Lines before it that say that the training ended well, and that a smaller batch is tried."""


@dataclass(frozen=True, slots=True)
class FailurePhase:
    """The phase of a failure: its `name`, a sentence without subject (`while saving a checkpoint, after step 1200`),
    the last step that the log shows, and whether the traceback or the last lines say so.
    """

    name: str
    text: str
    step: int | None = None
    source: Literal["traceback", "lines"] = "lines"


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """The block that a job was allocating when memory or space ran out. `text` describes it; `change` is the remedy."""

    name: str
    text: str
    change: str


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
    phase: FailurePhase | None = None
    allocation: FailedAllocation | None = None
    facts: LogFacts = field(default_factory=LogFacts)
    releases: str = ""
    """The releases that print this message, where that is known."""
    hosts: tuple[str, ...] = ()
    verdict: Verdict | None = None
    """The verdict of the run's supervisor, which names rank, host, signal and step; None for other logs."""
    line_files: tuple[str, ...] = ()
    """The log of each of `lines`, and of `line` in `file`, where several were read; numbers count within each log."""
    file: str = ""
    is_named: bool = False
    """The message names the failure and allows no other, even where the remedy is not certain."""
