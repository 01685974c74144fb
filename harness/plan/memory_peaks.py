# SPDX-License-Identifier: Apache-2.0
"""Peaks of a GPU by who counts them: torch's allocated and reserved bytes, and what `nvidia-smi` shows."""

from __future__ import annotations

from typing import NamedTuple

from harness.plan.memory_estimate import MemoryEstimate

PEAK_NAMES = ("allocated", "reserved", "nvidia_smi")


class MemoryPeak(NamedTuple):
    """Bytes a rank, and (least, most); `name` is one of `PEAK_NAMES`."""

    name: str
    bytes: int
    range: tuple[int, int]


def peaks_of(memory: MemoryEstimate, capacity: int | None = None) -> tuple[MemoryPeak, ...]:
    """The three of them. An allocator reserves no more than the GPU has: `capacity` bounds what tensors do not need."""
    return (
        MemoryPeak("allocated", memory.allocated_peak, memory.allocated_peak_range),
        _bound("reserved", memory.reserved_peak, memory.reserved_peak_range, memory, capacity),
        _bound("nvidia_smi", memory.nvidia_smi_peak, memory.nvidia_smi_peak_range, memory, capacity),
    )


def _bound(name: str, size: int, bounds: tuple[int, int], memory: MemoryEstimate, capacity: int | None) -> MemoryPeak:
    limit = max(capacity, memory.allocated_peak) if capacity else max(size, *bounds)
    return MemoryPeak(name, min(size, limit), (min(bounds[0], limit), min(bounds[1], limit)))
