# SPDX-License-Identifier: Apache-2.0
"""Detects hangs: no status of any rank has changed for longer than its phase may take.

Reads statuses and the process table; kills nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.launching.process.processes import read_process
from harness.run_records.rank_statuses import RankStatus
from harness.units import format_seconds

MIN_PHASE_SECONDS = {"start": 1800.0, "save": 1800.0, "end": 1800.0}
"""Lower bounds of the timeout by phase, since large models build and save slowly."""
UNTIMED_PHASES = {"data"}
"""Preparing a large corpus may take any time."""
_STOPPED_STATES = {"T", "t"}
_PHASE_NAMES = {
    "start": "start-up",
    "step": "a step",
    "save": "a save",
    "eval": "an evaluation",
    "upload": "an upload",
    "end": "its end",
}


@dataclass(frozen=True, slots=True)
class Hang:
    """A hang, which ends the run. `rank` is the one that the others wait for, where it is known."""

    phase: str
    seconds: float
    rank: int | None
    detail: str
    stacks: tuple[Path, ...] = ()

    @property
    def reason(self) -> str:
        """One sentence for the verdict."""
        phase = f"hung in {_PHASE_NAMES.get(self.phase, self.phase)}, no progress for {format_seconds(self.seconds)}"
        stacks = f", the stacks of the ranks are in {self.stacks[0].parent}" if self.stacks else ""
        return f"{phase}{self.detail}{stacks}"


class HangDetector:
    """Detects that no rank progresses, from their statuses. Only its own clock counts: hosts may disagree about time.
    `local`: the ranks are processes of this machine, where it finds one that a signal has stopped.
    """

    def __init__(self, limit: float | None, *, local: bool) -> None:
        self._limit, self._local = limit, local
        self._last_statuses: Mapping[int, RankStatus] = {}
        self._last_change = time.monotonic()

    def stalled_seconds(self, statuses: Mapping[int, RankStatus]) -> float | None:
        """The seconds since the last change, once they exceed the timeout; else None."""
        now = time.monotonic()
        if statuses != self._last_statuses:
            self._last_statuses, self._last_change = dict(statuses), now
        stalled = now - self._last_change
        if self._limit is None or stalled <= self._limit:
            return None
        unfinished = [s for s in statuses.values() if not s.is_final]
        if statuses and (not unfinished or any(s.phase in UNTIMED_PHASES for s in unfinished)):
            return None
        phases = {s.phase for s in unfinished} or {"start"}
        limit = max(max(self._limit, MIN_PHASE_SECONDS.get(phase, 0.0)) for phase in phases)
        # A phase may be slow, but not for a process that does not run.
        return stalled if stalled > limit or (self._local and any(_is_stopped(s.pid) for s in unfinished)) else None


def _is_stopped(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state in _STOPPED_STATES


def describe_hang(statuses: Mapping[int, RankStatus], seconds: float, *, local: bool) -> Hang:
    """The hang, with the rank that the others wait for: one that a signal has stopped, else the furthest behind."""
    unfinished = [s for s in statuses.values() if not s.is_final]
    if not unfinished:
        return Hang("start", seconds, None, "")
    if local:
        for status in unfinished:
            if _is_stopped(status.pid):
                return Hang(status.phase, seconds, status.rank, f": process {status.pid} is stopped by a signal")
    last = min(unfinished, key=lambda s: s.step)
    is_alone = sum(s.step == last.step and s.phase == last.phase for s in unfinished) == 1 and len(unfinished) > 1
    return Hang(last.phase, seconds, last.rank if is_alone else None, "")
