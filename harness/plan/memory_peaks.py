# SPDX-License-Identifier: Apache-2.0
"""Peaks of a GPU by who counts them: torch's allocated and reserved bytes, and what `nvidia-smi` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from harness.plan.memory.memory_estimate import MemoryEstimate, estimate_memory
from harness.plan.memory.memory_items import MemoryItem
from harness.plan.planner import Plan
from harness.plan.time.calibration import Calibration, RateFactor

PEAK_NAMES = ("allocated", "reserved", "nvidia_smi")


class MemoryPeak(NamedTuple):
    """Bytes a rank, and (least, most); `name` is one of `PEAK_NAMES`."""

    name: str
    bytes: int
    range: tuple[int, int]


def with_twice_the_gpus(plan: Plan) -> tuple[int, list[MemoryItem]] | None:
    """The peak with twice the data ranks and the same micro-batch, and the largest parts that these do not divide; None
    of a run on CPUs, and at stage 0, which divides nothing.
    """
    memory, settings = plan.memory, plan.settings
    if plan.model is None or settings is None or memory is None or memory.pooled or not settings.stage:
        return None
    more = replace(settings, data_parallel_size=2 * settings.data_parallel_size)
    twice = estimate_memory(plan.model, more, plan.device)
    now = {(item.kind, item.description): item.bytes for item in memory.items_of("gpu")}
    held = [item for item in twice.items_of("gpu") if twice.gpu_peak_phase in item.phases and not item.assumed]
    there = [item for item in held if item.bytes >= 1 << 30]
    whole = [item for item in there if item.bytes >= 0.9 * now.get((item.kind, item.description), 0)]
    return twice.gpu_peak, sorted(whole, key=lambda item: -item.bytes)[:2]


def peaks_of(
    memory: MemoryEstimate, capacity: int | None = None, calibration: Calibration | None = None
) -> tuple[MemoryPeak, ...]:
    """The three of them, with the factors of a calibration. An allocator reserves no more than the GPU has: `capacity`
    bounds what tensors do not need.
    """
    planned = tuple(
        MemoryPeak(name, getattr(memory, f"{name}_peak"), getattr(memory, f"{name}_peak_range")) for name in PEAK_NAMES
    )
    peaks = planned if calibration is None else scale_peaks(planned, calibration.allocated, calibration.reserved)
    tensors = peaks[0]
    limit = max(capacity, tensors.bytes) if capacity else None
    return (tensors, *(_bound(peak, limit) for peak in peaks[1:]))


def _bound(peak: MemoryPeak, limit: int | None) -> MemoryPeak:
    low, high = peak.range
    return peak if limit is None else MemoryPeak(peak.name, min(peak.bytes, limit), (min(low, limit), min(high, limit)))


def scale_peaks(
    peaks: Sequence[MemoryPeak], allocated: RateFactor | None, reserved: RateFactor | None
) -> tuple[MemoryPeak, ...]:
    """The same with the factors of a machine on the tensors, and on what the allocator reserves for them. `nvidia-smi`
    keeps what it adds, which no run measures.
    """
    planned = {peak.name: peak for peak in peaks}
    if allocated is None or "allocated" not in planned:
        return tuple(peaks)
    scaled = {"allocated": _scale_peak("allocated", planned["allocated"].bytes, allocated)}
    if reserved is not None and "reserved" in planned:
        both = RateFactor(factor=allocated.factor * reserved.factor, spread=allocated.spread * reserved.spread)
        scaled["reserved"] = after = _scale_peak("reserved", planned["allocated"].bytes, both)
        if "nvidia_smi" in planned:
            before, smi = planned["reserved"], planned["nvidia_smi"]
            low, high = (smi.range[i] - before.range[i] + after.range[i] for i in (0, 1))
            scaled["nvidia_smi"] = MemoryPeak("nvidia_smi", smi.bytes - before.bytes + after.bytes, (low, high))
    return tuple(scaled.get(peak.name, peak) for peak in peaks)


def _scale_peak(name: str, size: int, by: RateFactor) -> MemoryPeak:
    middle = size * by.factor
    return MemoryPeak(name, round(middle), (round(middle / by.spread), round(middle * by.spread)))
