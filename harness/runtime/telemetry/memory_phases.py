# SPDX-License-Identifier: Apache-2.0
"""Peak memory of each phase of a run, and the bytes of its states: one line `memory` a phase, with all ranks.

Phases are those of the plan: `load`, `resume`, `step` (the first one, forward and backward in it), `save` (the first).
"""

from __future__ import annotations

from typing import Any

from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.metrics import MetricsWriter
from harness.runtime.telemetry.memory_usage import read_and_reset_peak_memory
from harness.runtime.telemetry.state_bytes import state_bytes


class MemoryPhases:
    """The phases of one start. All ranks call `record` in the same order: it is a collective."""

    def __init__(self, distributed: Distributed, metrics: MetricsWriter) -> None:
        self._distributed, self._metrics = distributed, metrics
        self._recorded_phases: set[str] = set()
        self._pending_lines: list[dict[str, Any]] = []
        self._is_writing = False

    def start_writing(self) -> None:
        """Write the lines of earlier phases. The line `run` is written before them."""
        self._is_writing = True
        for line in self._pending_lines:
            self._metrics.write("memory", **line)
        self._pending_lines = []

    def record(self, phase: str, step: int, engine: Engine | None = None) -> None:
        """A phase has ended. Only the first of each name is recorded. With `engine` its states are counted."""
        if phase in self._recorded_phases:
            return
        self._recorded_phases.add(phase)
        own_values = read_and_reset_peak_memory(), state_bytes(engine) if engine is not None else {}
        rank_values = self._distributed.all_gather_object(own_values)
        columns = {f"{key}": [memory[key] for memory, _ in rank_values] for key in rank_values[0][0]}
        states = {
            key: max(rank_states.get(key, 0) for _, rank_states in rank_values)
            for key in sorted({k for _, f in rank_values for k in f})
        }
        line = {"step": step, "phase": phase, **columns, **({"states": states} if states else {})}
        if self._is_writing:
            self._metrics.write("memory", **line)
        else:
            self._pending_lines.append(line)
