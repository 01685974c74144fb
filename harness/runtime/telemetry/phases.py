"""What each phase of a run held at most, and what the states are in bytes: one line `memory` a phase, all ranks in it.

Phases are those of the plan: `load`, `resume`, `step` (the first one, forward and backward in it), `save` (the first).
"""

from __future__ import annotations

from typing import Any

from harness.runtime.metrics import Metrics
from harness.runtime.ranks import Ranks
from harness.runtime.telemetry.memory import memory_of_phase
from harness.runtime.telemetry.state_bytes import state_bytes


class Phases:
    """Of one start. All ranks call the same methods: each is a collective."""

    def __init__(self, ranks: Ranks, metrics: Metrics) -> None:
        self._ranks, self._metrics = ranks, metrics
        self._told: set[str] = set()
        self._waiting: list[dict[str, Any]] = []
        self._begun = False

    def begin(self) -> None:
        """The line `run` is written: those of earlier phases may follow it."""
        self._begun = True
        for line in self._waiting:
            self._metrics.write("memory", **line)
        self._waiting = []

    def over(self, phase: str, step: int, engine: Any = None) -> None:
        """A phase has ended; of each kind the first is told. With `engine` its states are counted."""
        if phase in self._told:
            return
        self._told.add(phase)
        mine = memory_of_phase(), state_bytes(engine) if engine is not None else {}
        everyone = self._ranks.gather(mine)
        columns = {f"{key}": [memory[key] for memory, _ in everyone] for key in everyone[0][0]}
        states = {
            key: max(found.get(key, 0) for _, found in everyone) for key in sorted({k for _, f in everyone for k in f})
        }
        line = {"step": step, "phase": phase, **columns, **({"states": states} if states else {})}
        if self._begun:
            self._metrics.write("memory", **line)
        else:
            self._waiting.append(line)
