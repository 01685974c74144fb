"""When a run counts as hung: nothing that any rank says of itself has changed for longer than its phase may take.

Looks at status files and the process table; ends nobody.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.launching.process.processes import read_process
from harness.launching.supervise.run_verdict import RankStatus
from harness.units import format_seconds

MIN_PHASE_SECONDS = {"start": 1800.0, "save": 1800.0, "end": 1800.0}
"""What a phase may take at least, however short `launch.hang_timeout_seconds`: large models build and save slowly."""
UNTIMED_PHASES = {"data"}
"""Preparing a large corpus may take any time."""
_STOPPED_STATES = {"T", "t"}
_PHASE_NAMES = {"start": "start-up", "step": "a step", "save": "a save", "eval": "an evaluation", "end": "its end"}


@dataclass(frozen=True, slots=True)
class Hang:
    """A run that was ended for standing still. `rank` is the one that holds up the others, where it can be told."""

    phase: str
    seconds: float
    rank: int | None
    detail: str
    stacks: tuple[Path, ...] = ()

    @property
    def reason(self) -> str:
        """For people."""
        where = f"hung in {_PHASE_NAMES.get(self.phase, self.phase)}, nothing moved for {format_seconds(self.seconds)}"
        told = f", the stacks of the ranks are in {self.stacks[0].parent}" if self.stacks else ""
        return f"{where}{self.detail}{told}"


class HangDetector:
    """Notices that ranks move. Feed it their statuses; only its own clock counts, so hosts may disagree about time.
    `local`: the ranks are processes of this machine, so that one which a signal has stopped is seen.
    """

    def __init__(self, limit: float | None, *, local: bool) -> None:
        self._limit, self._local = limit, local
        self._last_snapshot: object = None
        self._last_change = time.monotonic()

    def stalled_seconds(self, statuses: Mapping[int, RankStatus]) -> float | None:
        """For how many seconds nothing has moved, once that is too long; else None."""
        now = time.monotonic()
        seen = sorted((s.rank, s.state, s.phase, s.step, s.time) for s in statuses.values())
        if seen != self._last_snapshot:
            self._last_snapshot, self._last_change = seen, now
        if self._limit is None:
            return None
        going = [s for s in statuses.values() if not s.is_final]
        if statuses and (not going or any(s.phase in UNTIMED_PHASES for s in going)):
            return None
        phases = {s.phase for s in going} or {"start"}
        still = now - self._last_change
        if still <= self._limit:
            return None
        limit = max(max(self._limit, MIN_PHASE_SECONDS.get(phase, 0.0)) for phase in phases)
        # A phase may be slow, but not for a process that does not run.
        return still if still > limit or (self._local and any(_is_stopped(s.pid) for s in going)) else None


def _is_stopped(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state in _STOPPED_STATES


def describe_hang(statuses: Mapping[int, RankStatus], seconds: float, *, local: bool) -> Hang:
    """Which rank holds up the others: one that a signal has stopped, else the one that is furthest behind."""
    going = [s for s in statuses.values() if not s.is_final]
    if not going:
        return Hang("start", seconds, None, "")
    if local:
        for status in going:
            if _is_stopped(status.pid):
                return Hang(status.phase, seconds, status.rank, f": process {status.pid} is stopped by a signal")
    behind = min(going, key=lambda s: s.step)
    alone = sum(s.step == behind.step and s.phase == behind.phase for s in going) == 1 and len(going) > 1
    return Hang(behind.phase, seconds, behind.rank if alone else None, "")
