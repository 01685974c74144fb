# SPDX-License-Identifier: Apache-2.0
"""Seconds of a step by the clock of the simulation, next to the plan's: by kind of work, and what nothing hides.

The simulation has two micro-batches. The first stands for all but the last of the run's; the last one ends in the
optimizer's step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.plan.planner import Plan
from harness.plan.time.step_time import StepTime, replace_parts

HOST = "host"
"""The rest of a step: launches, Python, waits without work."""
GROUPS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "compute": (("compute", "GPU optimizer"), ("compute",)),
    "collectives": (
        ("collectives", "parameters gathered after the step", "tensor and sequence parallelism", "pipeline messages"),
        ("all-gather", "reduce", "other collectives"),
    ),
    "copies": (("PCIe", "PCIe at the step"), ("host to device", "device to host")),
    "CPU optimizer": (("CPU optimizer",), ("CPU optimizer",)),
    "disk": (("NVMe", "parameters from NVMe"), ("disk read", "disk write")),
    HOST: (("issue of collectives",), ()),
}
"""Parts of the plan's step, and kinds of the clock (`runtime/simulation/step_clock.py`), that are the same work."""

_PARTS_OF_WORK = ("copies", "disk", HOST)
"""Groups of which the plan has less than all: copies of one direction, the disk beyond the CPU's step, collectives'
issue.
"""


@dataclass(frozen=True, slots=True)
class WorkTime:
    """Seconds of one kind of work, and those of them that nothing hides."""

    busy: float
    exposed: float


@dataclass(frozen=True, slots=True)
class SimulatedTime:
    """Seconds of a step of the whole run: of all, by phase, and by kind of the clock. The exposed ones and those of the
    host add up to the step.
    """

    seconds: float
    phases: Mapping[str, float]
    kinds: Mapping[str, WorkTime]
    micro_batches: int

    @property
    def host(self) -> float:
        """Seconds in which only the host works or waits."""
        return max(0.0, self.seconds - sum(kind.exposed for kind in self.kinds.values()))

    def group(self, name: str) -> WorkTime:
        """The kinds of one of `GROUPS` together."""
        if name == HOST:
            return WorkTime(self.host, self.host)
        kinds = [self.kinds[kind] for kind in GROUPS[name][1] if kind in self.kinds]
        return WorkTime(sum(kind.busy for kind in kinds), sum(kind.exposed for kind in kinds))


def simulated_time(result: Mapping[str, Any], micro_batches: int) -> SimulatedTime | None:
    """The step of a run with so many micro-batches; None for a simulation without a clock."""
    clock = result.get("clock")
    if not clock:
        return None
    segments = clock["segments"]
    begins = [number for number, segment in enumerate(segments) if segment["phase"] == "forward"]
    repeated = segments[: begins[1]] if len(begins) > 1 else []
    weights = [(segment, micro_batches - 1) for segment in repeated]
    weights += [(segment, 1) for segment in segments[len(repeated) :]]
    phases: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    exposed: Counter[str] = Counter()
    for segment, weight in weights:
        phases[segment["phase"]] += weight * segment["seconds"]
        for kind, seconds in segment["busy"].items():
            busy[kind] += weight * seconds
            exposed[kind] += weight * segment["exposed"][kind]
    kinds = {kind: WorkTime(busy[kind], exposed[kind]) for kind in busy}
    in_order = {phase: phases[phase] for phase in ("forward", "backward", "step") if phase in phases}
    return SimulatedTime(sum(phases.values()), in_order, kinds, micro_batches)


def planned_group(time: StepTime, name: str) -> WorkTime:
    """The plan's parts of one of `GROUPS` together."""
    parts = [part for part in time.parts if part.name in GROUPS[name][0]]
    return WorkTime(sum(part.seconds for part in parts), sum(part.exposed for part in parts))


def with_simulated_overlap(time: StepTime, simulated: SimulatedTime) -> StepTime:
    """The plan's seconds of each part, of which as large a share is exposed as in the simulation."""
    shares = {name: _exposed_share(planned_group(time, name), simulated.group(name), name) for name in GROUPS}
    group_of = {part: name for name, (parts, _) in GROUPS.items() for part in parts}
    parts = [replace(part, exposed=part.seconds * shares[group_of.get(part.name, "compute")]) for part in time.parts]
    return replace_parts(time, parts)


def _exposed_share(planned: WorkTime, simulated: WorkTime, group: str) -> float:
    """All of compute. Where the plan's seconds leave work out, the simulated seconds count, and not their share."""
    if group == "compute":
        return 1.0
    whole = planned.busy if group in _PARTS_OF_WORK else simulated.busy
    return min(1.0, simulated.exposed / whole) if whole else 1.0


@dataclass(frozen=True, slots=True)
class TimeComparison:
    """The plan's step, the simulated one, and the plan's with the simulated overlap."""

    planned: StepTime
    simulated: SimulatedTime
    with_overlap: StepTime


def compare_time(plan: Plan, result: Mapping[str, Any]) -> TimeComparison | None:
    """Both sides; None where one of them has no time."""
    if plan.time is None or plan.settings is None:
        return None
    simulated = simulated_time(result, plan.settings.accumulation)
    if simulated is None:
        return None
    return TimeComparison(plan.time, simulated, with_simulated_overlap(plan.time, simulated))
