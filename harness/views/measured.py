"""Memory as it was planned beside what was measured, tier by tier: for the report and the end of a launch."""

from __future__ import annotations

from harness.records.files import number
from harness.records.record import Record

Pair = tuple[float | None, float]


def measured(record: Record) -> list[tuple[str, Pair]]:
    """(tier, (bytes planned or None, bytes measured at most)) for every tier that was measured. Host and GPU are a
    rank's, NVMe is a host's.
    """
    plan = record.plan
    pairs = [
        ("GPU", number(plan.get("gpu_peak_bytes")), most(record, "memory_gpu_peak_bytes", "memory_gpu_bytes")),
        ("host", planned_host(record), most(record, "memory_host_peak_bytes", "memory_host_bytes")),
        ("NVMe", number(plan.get("nvme_bytes")), most(record, "nvme_bytes")),
    ]
    return [(name, (planned, peak)) for name, planned, peak in pairs if peak]


def planned_host(record: Record) -> float | None:
    """A rank's share of what was planned for its host; on the CPU accelerator with what would lie on a GPU."""
    plan = record.plan
    host, gpu = number(plan.get("host_peak_bytes")), number(plan.get("gpu_peak_bytes"))
    ranks = number(plan.get("ranks_per_host")) or 1
    if host is None or gpu is None:
        return None
    pooled = plan.get("device_memory_is_host_memory") is True or not record.on_cpu
    return host / ranks if pooled else host / ranks + gpu


def most(record: Record, *keys: str) -> float | None:
    """The highest value; None where none was recorded."""
    return max((value for _, value in record.points("step", *keys)), default=None)
