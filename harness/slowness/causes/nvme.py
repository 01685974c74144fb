"""Offload-bound by NVMe: ranks are blocked by reads and writes of what is swapped."""

from __future__ import annotations

from typing import Any

from harness.plan.settings import Settings
from harness.slowness.case import Case, Setting, Slow, percent
from harness.units import format_bytes, format_seconds

LIMIT = 0.10


def look(case: Case) -> Slow | None:
    """More than a tenth of the step; where that was not measured, as planned."""
    s = case.settings
    if s is None or "nvme" not in (s.optimizer_at, s.parameters_at):
        return None
    measured, planned = case.share("io"), case.planned("NVMe", "parameters from NVMe")
    share = measured if measured is not None else planned
    if share is None or share < LIMIT:
        return None
    evidence = []
    if measured is not None:
        spent = format_seconds(case.measured["seconds_io"])
        evidence.append(f"`seconds_io` is {spent} of a step of {format_seconds(case.step)} ({percent(share)})")
    moved = case.measured.get("nvme_read_bytes", 0.0) + case.measured.get("nvme_write_bytes", 0.0)
    if moved and case.step:
        evidence.append(f"rank 0 moves {format_bytes(moved)} a step, {format_bytes(moved / case.step)}/s over the step")
    if planned is not None:
        evidence.append(f"the plan has {percent(planned)} of the step on NVMe")
    advice = ("`harness doctor --measure` tells what the disks give; several disks under one RAID 0 add up",)
    return Slow("nvme", "swapping to NVMe", share, tuple(evidence), _settings(s), advice, measured is None)


def _settings(s: Settings) -> tuple[Setting, ...]:
    """Into host memory where that is large enough; otherwise read and write beside Adam."""
    found: list[Setting] = []
    if s.optimizer_at == "nvme":
        found.append(Setting("the optimizer in host memory", _on_cpu("zero.offload_optimizer")))
        if not (s.pipeline_read and s.pipeline_write):
            sets = {"zero.offload_optimizer.pipeline_read": True, "zero.offload_optimizer.pipeline_write": True}
            found.append(Setting("read and write while Adam computes", sets))
    if s.parameters_at == "nvme":
        found.append(Setting("parameters in host memory", _on_cpu("zero.offload_param")))
    if s.optimizer_at == s.parameters_at == "nvme":
        both = {**_on_cpu("zero.offload_optimizer"), **_on_cpu("zero.offload_param")}
        found.append(Setting("optimizer and parameters in host memory", both))
    return tuple(found)


def _on_cpu(section: str) -> dict[str, Any]:
    """Without what only NVMe knows."""
    gone = ("nvme_path", "pipeline_read", "pipeline_write", "fast_init", "buffer_count", "buffer_size", "max_in_cpu")
    return {f"{section}.device": "cpu", **{f"{section}.{key}": None for key in gone}}
