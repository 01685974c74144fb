# SPDX-License-Identifier: Apache-2.0
"""Extrapolates the measurements of a rehearsal to the whole run, by the plans of both.

Arithmetic on two plans and the lines of metrics.jsonl; formats nothing. A figure is extrapolated by ratio (the plan is
wrong by a factor) and by difference (the plan is wrong by an amount a rank). A small run cannot show which is right, so
the two are the bounds of the estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.memory.memory_items import Phase
from harness.plan.memory.zero_partitions import count_frozen_bytes, count_trainable
from harness.plan.planner import Plan
from harness.plan.time.goodput import checkpoint_bytes

MetricsLine = Mapping[str, Any]
Unit = Literal["bytes", "seconds"]
_PLAN_PHASES: Mapping[str, tuple[Phase, ...]] = {
    "load": ("load",),
    "step": ("forward", "backward", "step"),
    "save": ("save",),
    "resume": ("resume",),
    "export": ("export",),
}
"""A phase of the lines `memory` -> phases of the plan."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure. `planned` is from the small run's plan, `whole` from the whole run's; `low` and `high` are the bounds
    of the estimate. None where a plan does not have it.
    """

    name: str
    unit: Unit
    measured: float
    planned: float | None
    whole: float | None
    low: float | None
    high: float | None
    exact: bool = False
    """`measured` equals `planned`, to the byte. Then the estimate is exact too."""
    why: str = ""
    """The reason why there is no estimate, or what the estimate leaves out."""

    @property
    def ratio(self) -> float | None:
        """Measured over planned."""
        return self.measured / self.planned if self.planned else None


@dataclass(frozen=True, slots=True)
class RehearsalMeasurements:
    """The lines `memory`, `step` and `save` of both starts, and the peak memory of the export."""

    memory_lines: Sequence[MetricsLine]
    step_seconds: Sequence[float]
    save_lines: Sequence[MetricsLine]
    export_peak: int | None = None


def extrapolate(measurements: RehearsalMeasurements, small: Plan, whole: Plan) -> list[Quantity]:
    """Every figure that both plans have: states by tier and kind, memory by phase, a checkpoint, a step."""
    if small.memory is None or whole.memory is None:
        return []
    return [
        *_extrapolate_states(measurements.memory_lines, small.memory, whole.memory),
        *_extrapolate_phases(measurements, small.memory, whole.memory),
        *_extrapolate_checkpoint(measurements.save_lines, small, whole),
        *_extrapolate_step(measurements.step_seconds, small, whole),
    ]


def sum_by_tier(quantities: Sequence[Quantity]) -> list[Quantity]:
    """The sums of the states of each tier."""
    totals = []
    for tier in ("gpu", "host", "nvme"):
        kinds = [q for q in quantities if q.name.startswith(f"{tier}.")]
        if kinds:
            measured = sum(q.measured for q in kinds)
            planned, whole = sum(q.planned or 0 for q in kinds), sum(q.whole or 0 for q in kinds)
            low, high = sum(q.low or 0 for q in kinds), sum(q.high or 0 for q in kinds)
            exact = all(q.exact for q in kinds)
            totals.append(Quantity(f"states on {tier}", "bytes", measured, planned, whole, low, high, exact))
    return totals


def _extrapolate_states(lines: Sequence[MetricsLine], small: MemoryEstimate, whole: MemoryEstimate) -> list[Quantity]:
    """Bytes of the states of the rank with most, after its first step."""
    state_bytes: Mapping[str, int] = next(
        (line["states"] for line in lines if isinstance(line.get("states"), Mapping)), {}
    )
    quantities = []
    for name, measured in state_bytes.items():
        planned, full = _planned_state_bytes(small, name), _planned_state_bytes(whole, name)
        if not planned:
            quantities.append(
                Quantity(name, "bytes", measured, None, full or None, None, None, why="the plan has no such row")
            )
            continue
        estimate = measured * full // planned
        quantities.append(
            Quantity(name, "bytes", measured, planned, full, estimate, estimate, exact=measured == planned)
        )
    return quantities


def _planned_state_bytes(memory: MemoryEstimate, name: str) -> int:
    """Planned bytes a rank of this tier and kind, after a step."""
    tier, _, kind = name.partition(".")
    return sum(
        r.bytes for r in memory.items if (r.tier, r.kind) == (tier, kind) and (tier == "nvme" or "step" in r.phases)
    )


def _extrapolate_phases(
    measurements: RehearsalMeasurements, small: MemoryEstimate, whole: MemoryEstimate
) -> list[Quantity]:
    """Peak host memory of a node in each phase; peak device memory of a rank in the first step."""
    quantities = []
    for phase, plan_phases in _PLAN_PHASES.items():
        line = next((m for m in measurements.memory_lines if m.get("phase") == phase), {})
        peaks = line.get("memory_host_peak_bytes")
        measured = measurements.export_peak if phase == "export" else sum(peaks) if peaks else None
        if measured is not None:
            quantities.append(_extrapolate_host_memory(phase, measured, small, whole))
        gpu = max(line.get("memory_gpu_peak_bytes") or [0])
        if gpu and phase == "step":
            planned, full = (_planned_device_bytes(memory, plan_phases) for memory in (small, whole))
            low, high = sorted((full * gpu / planned, float(full + gpu - planned)))
            quantities.append(Quantity("device memory, step", "bytes", gpu, planned, full, low, high))
    return quantities


def _extrapolate_host_memory(phase: str, measured: float, small: MemoryEstimate, whole: MemoryEstimate) -> Quantity:
    """By difference (an amount a rank), and by the ratio of what is not the bare process. Where that is less than half
    of the small run, by difference alone: the ratio would be that of Python and its libraries.
    """
    planned, full = (max(memory.host_bytes_at(p) for p in _PLAN_PHASES[phase]) for memory in (small, whole))
    small_process, whole_process = (_process_bytes(memory, phase) for memory in (small, whole))
    scale = 1.0 if phase == "export" else whole.ranks_per_host / small.ranks_per_host
    by_difference = full + (measured - planned) * scale
    share = 1 - small_process / planned
    if share < 0.5:
        reason = f"by difference alone: {100 * (1 - share):.0f}% of it is the bare process"
        return Quantity(
            f"host memory, {phase}", "bytes", measured, planned, full, by_difference, by_difference, why=reason
        )
    by_ratio = whole_process + (full - whole_process) * max(0.0, measured - small_process) / (planned - small_process)
    low, high = sorted((by_difference, by_ratio))
    return Quantity(f"host memory, {phase}", "bytes", measured, planned, full, low, high)


def _process_bytes(memory: MemoryEstimate, phase: str) -> int:
    """Planned bytes of the processes of a host without any tensor."""
    rows = [r for r in memory.items if r.kind == "process" and r.tier == "host" and _PLAN_PHASES[phase][0] in r.phases]
    return sum(r.bytes for r in rows) * (1 if phase == "export" else memory.ranks_per_host)


def _planned_device_bytes(memory: MemoryEstimate, phases: Iterable[Phase]) -> int:
    """Planned device memory of a rank, as far as torch's allocator counts it."""
    rows = [row for row in memory.items if row.tier == "gpu" and not row.assumed]
    return max(sum(row.bytes for row in rows if phase in row.phases) for phase in phases)


def _extrapolate_checkpoint(save_lines: Sequence[MetricsLine], small: Plan, whole: Plan) -> list[Quantity]:
    sizes = [float(line["bytes"]) for line in save_lines if line.get("bytes")]
    if not sizes:
        return []
    planned, full = (float(_planned_checkpoint_bytes(plan)) for plan in (small, whole))
    if not planned or not full:
        return []
    ratios = [size / planned for size in sizes]
    bounds = full * min(ratios), full * max(ratios)
    return [Quantity("a checkpoint", "bytes", median(sizes), planned, full, *bounds)]


def _planned_checkpoint_bytes(plan: Plan) -> int:
    if plan.settings is None or plan.model is None:
        return 0
    trainable, _ = count_trainable(plan.model, plan.settings)
    return checkpoint_bytes(plan.settings, trainable, count_frozen_bytes(plan.model, plan.settings))


def _extrapolate_step(seconds: Sequence[float], small: Plan, whole: Plan) -> list[Quantity]:
    if not seconds:
        return []
    median_seconds, full = median(seconds), whole.time.seconds if whole.time else None
    if small.time is None or full is None:
        reason = "the plan has no rates of a CPU: no time is extrapolated"
        return [Quantity("a step", "seconds", median_seconds, None, full, None, None, why=reason)]
    planned = small.time.seconds
    low, high = (full * value / planned for value in (min(seconds), max(seconds)))
    return [Quantity("a step", "seconds", median_seconds, planned, full, low, high)]
