"""Offload-bound by NVMe: ranks are blocked by reads and writes of what is swapped."""

from __future__ import annotations

from typing import Any

from harness.plan.plan_settings import PlanSettings
from harness.slowness.run_measurements import RunMeasurements, SettingChange, Slowdown, format_percent
from harness.units import format_bytes, format_seconds

LIMIT = 0.10


def detect(case: RunMeasurements) -> Slowdown | None:
    """More than a tenth of the step; where that was not measured, as planned."""
    s = case.settings
    if s is None or "nvme" not in (s.optimizer_device, s.param_device):
        return None
    measured, planned = case.measured_share("io"), case.planned_share("NVMe", "parameters from NVMe")
    share = measured if measured is not None else planned
    if share is None or share < LIMIT:
        return None
    evidence = []
    if measured is not None:
        spent = format_seconds(case.medians["seconds_io"])
        evidence.append(
            f"`seconds_io` is {spent} of a step of {format_seconds(case.step_seconds)} ({format_percent(share)})"
        )
    moved = case.medians.get("nvme_read_bytes", 0.0) + case.medians.get("nvme_write_bytes", 0.0)
    if moved and case.step_seconds:
        evidence.append(
            f"rank 0 moves {format_bytes(moved)} a step, {format_bytes(moved / case.step_seconds)}/s over the step"
        )
    if planned is not None:
        evidence.append(f"the plan has {format_percent(planned)} of the step on NVMe")
    advice = ("`harness doctor --measure` tells what the disks give; several disks under one RAID 0 add up",)
    return Slowdown("nvme", "swapping to NVMe", share, tuple(evidence), _suggest_settings(s), advice, measured is None)


def _suggest_settings(s: PlanSettings) -> tuple[SettingChange, ...]:
    """Into host memory where that is large enough; otherwise read and write beside Adam."""
    found: list[SettingChange] = []
    if s.optimizer_device == "nvme":
        found.append(SettingChange("the optimizer in host memory", _move_to_cpu("zero.offload_optimizer")))
        if not (s.pipeline_read and s.pipeline_write):
            sets = {"zero.offload_optimizer.pipeline_read": True, "zero.offload_optimizer.pipeline_write": True}
            found.append(SettingChange("read and write while Adam computes", sets))
    if s.param_device == "nvme":
        found.append(SettingChange("parameters in host memory", _move_to_cpu("zero.offload_param")))
    if s.optimizer_device == s.param_device == "nvme":
        both = {**_move_to_cpu("zero.offload_optimizer"), **_move_to_cpu("zero.offload_param")}
        found.append(SettingChange("optimizer and parameters in host memory", both))
    return tuple(found)


def _move_to_cpu(section: str) -> dict[str, Any]:
    """Without what only NVMe knows."""
    gone = ("nvme_path", "pipeline_read", "pipeline_write", "fast_init", "buffer_count", "buffer_size", "max_in_cpu")
    return {f"{section}.device": "cpu", **{f"{section}.{key}": None for key in gone}}
