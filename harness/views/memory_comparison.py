# SPDX-License-Identifier: Apache-2.0
"""Planned and measured memory, tier by tier: for the report and the end of a launch."""

from __future__ import annotations

from harness.run_records.run_record import RunRecord
from harness.units import finite_number

PlannedMeasured = tuple[float | None, float]


def compare_memory(record: RunRecord) -> list[tuple[str, PlannedMeasured]]:
    """(tier, (bytes planned or None, bytes measured at most)) for every tier that was measured. Host and GPU are a
    rank's, NVMe is a host's.
    """
    plan = record.plan
    pairs = [
        (
            "GPU",
            finite_number(plan.get("gpu_peak_bytes")),
            max_recorded(record, "memory_gpu_peak_bytes", "memory_gpu_bytes"),
        ),
        ("host", planned_host_bytes(record), max_recorded(record, "memory_host_peak_bytes", "memory_host_bytes")),
        ("NVMe", finite_number(plan.get("nvme_bytes")), max_recorded(record, "nvme_bytes")),
    ]
    return [(name, (planned, peak)) for name, planned, peak in pairs if peak]


def planned_host_bytes(record: RunRecord) -> float | None:
    """A rank's share of its host's planned memory; on the CPU accelerator with the planned GPU memory."""
    plan = record.plan
    host, gpu = finite_number(plan.get("host_peak_bytes")), finite_number(plan.get("gpu_peak_bytes"))
    ranks = finite_number(plan.get("ranks_per_host")) or 1
    if host is None or gpu is None:
        return None
    pooled = plan.get("device_memory_is_host_memory") is True or not record.on_cpu
    return host / ranks if pooled else host / ranks + gpu


def max_recorded(record: RunRecord, *keys: str) -> float | None:
    """The highest value; None where none was recorded."""
    return max((value for _, value in record.points("step", *keys)), default=None)
