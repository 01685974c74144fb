# SPDX-License-Identifier: Apache-2.0
"""The GPUs of all ranks as rank 0 sees them: lines `gpu` where a problem begins or ends, and causes for slow ranks.

Reads no GPU; `gpu_watch` does, on each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.hostinfo.gpu_health import POWER_CAP, GpuProblem
from harness.runtime.telemetry.gpu_watch import GpuReading, OwnGpu, read_packed_clock, unpack_reading
from harness.runtime.telemetry.stragglers import median_excluding

_UPDATES_UNTIL_GONE = 3
"""Throttling comes and goes: a problem is over once so many readings in a row do not have it."""
_MAX_CHANGES = 64
"""Lines at once; the others are written after the next gather."""
_MAX_WARNINGS = 3
_SLOW_CLOCK = 0.9
"""A clock below this part of the peers' explains a slow rank."""


@dataclass(slots=True)
class _RankState:
    """The problems of one rank's GPU, each with its age in updates, and what the last line said."""

    problems: dict[str, GpuProblem] = field(default_factory=dict)
    ages: dict[str, int] = field(default_factory=dict)
    xid: int = 0
    written: tuple[Any, ...] = ()


@dataclass(slots=True)
class GpuReports:
    """The known facts of each rank's GPU. `hosts` and `gpus` are in rank order; a rank on a CPU has no GPU."""

    hosts: Sequence[str]
    gpus: Sequence[OwnGpu | None]
    _states: dict[int, _RankState] = field(default_factory=dict)
    _rows: Sequence[Sequence[float]] = ()
    _clocks: list[float] | None = None
    """Those of `_rows`, sorted, once they are needed."""

    def update(self, rows: Sequence[Sequence[float]], log: Callable[[str], None]) -> list[dict[str, Any]]:
        """The readings of all ranks, packed. Returns the fields of the lines to write, and logs new problems."""
        self._rows, self._clocks = rows, None
        lines: list[dict[str, Any]] = []
        warnings: list[str] = []
        for rank, row in enumerate(rows):
            if not row[0] and rank not in self._states:
                continue
            reading = unpack_reading(row)
            if reading is None:
                continue
            state = self._states.setdefault(rank, _RankState())
            _age_problems(state, reading)
            key = (tuple(state.problems), reading.health.ecc_uncorrected or 0, state.xid)
            if key == state.written or (not state.written and not state.problems and not state.xid):
                continue
            if len(lines) == _MAX_CHANGES:
                break
            state.written = key
            lines.append(self._to_line(rank, state, reading))
            if state.problems or state.xid:
                warnings.append(f"{self._name(rank)} {lines[-1]['evidence']}")
        for text in warnings[:_MAX_WARNINGS]:
            log(f"warning: {text}")
        if len(warnings) > _MAX_WARNINGS:
            log(f"warning: so do {len(warnings) - _MAX_WARNINGS} more GPUs, see `gpu` in metrics.jsonl")
        return lines

    def explain_slow_rank(self, rank: int) -> str:
        """The reason why a rank's GPU may be slow, with the GPU as its subject; empty where nothing is known."""
        state, gpu = self._states.get(rank), self.gpus[rank]
        if gpu is None or rank >= len(self._rows):
            return ""
        if state is not None and state.problems:
            return f"{gpu.label} {'; '.join(problem.clause for problem in state.problems.values())}"
        reading = unpack_reading(self._rows[rank])
        clock = reading.health.sm_clock if reading is not None else None
        if self._clocks is None:
            self._clocks = sorted(other for row in self._rows if (other := read_packed_clock(row)) is not None)
        peers = median_excluding(self._clocks, clock) if clock is not None else None
        if reading is None or clock is None or peers is None or clock >= _SLOW_CLOCK * peers:
            return ""
        limit = " at its power limit" if (reading.health.reasons or 0) & POWER_CAP else ""
        return f"{gpu.label} runs at {clock} MHz{limit}, those of its peers at {peers:.0f} MHz"

    def _name(self, rank: int) -> str:
        gpu = self.gpus[rank]
        return f"{gpu.label if gpu else 'the GPU'} of rank {rank} on {self.hosts[rank]}"

    def _to_line(self, rank: int, state: _RankState, reading: GpuReading) -> dict[str, Any]:
        gpu, health = self.gpus[rank], reading.health
        clauses = [problem.clause for problem in state.problems.values()]
        if state.xid:
            clauses.append(f"reported Xid {state.xid}")
        return {
            "rank": rank,
            "host": self.hosts[rank],
            "bus_id": gpu.bus_id if gpu else None,
            "uuid": gpu.uuid if gpu else None,
            "state": "problem" if clauses else "gone",
            "problems": list(state.problems),
            "evidence": "; ".join(clauses) or "has no problem any more",
            "sm_clock": health.sm_clock,
            "sm_clock_max": health.sm_clock_max,
            "temperature": health.temperature,
            "power": health.power,
            "power_limit": health.power_limit,
            "pcie_width": health.pcie_width,
            "pcie_width_max": health.pcie_width_max,
            "ecc_uncorrected": health.ecc_uncorrected or None,
            "xid": state.xid or None,
        }


def _age_problems(state: _RankState, reading: GpuReading) -> None:
    """Add the problems of a reading, and forget those that are over. A GPU at its power limit under load is usual."""
    for kind in state.ages:
        state.ages[kind] += 1
    for problem in reading.problems:
        if problem.kind != "power_cap":
            state.problems[problem.kind], state.ages[problem.kind] = problem, 0
    for kind in [kind for kind, age in state.ages.items() if age >= _UPDATES_UNTIL_GONE]:
        del state.problems[kind], state.ages[kind]
    state.xid = reading.xid or state.xid
