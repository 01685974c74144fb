# SPDX-License-Identifier: Apache-2.0
"""Offload-bound by NVMe: ranks are blocked by reads and writes of what is swapped."""

from __future__ import annotations

from typing import Any

from harness.plan.plan_settings import PlanSettings
from harness.slowness.run_measurements import RunMeasurements, SettingChange, Slowdown, format_percent
from harness.units import format_bytes

LIMIT = 0.10


def detect(run: RunMeasurements) -> Slowdown | None:
    """More than a tenth of the step waits for NVMe; without a measurement, by the plan."""
    settings = run.settings
    if settings is None or "nvme" not in (settings.optimizer_device, settings.param_device):
        return None
    measured_share, planned_share = (
        run.measured_share("io"),
        run.planned_share("NVMe", "parameters from NVMe"),
    )
    share = measured_share if measured_share is not None else planned_share
    if share is None or share < LIMIT:
        return None
    evidence = []
    if measured_share is not None:
        evidence.append(run.describe_share("io"))
    num_bytes = run.medians.get("nvme_read_bytes", 0.0) + run.medians.get("nvme_write_bytes", 0.0)
    if num_bytes and run.step_seconds:
        evidence.append(
            f"rank 0 moves {format_bytes(num_bytes)} a step,"
            f" {format_bytes(num_bytes / run.step_seconds)}/s over the step"
        )
    if planned_share is not None:
        evidence.append(f"the plan has {format_percent(planned_share)} of the step on NVMe")
    advice = ("`harness doctor --measure` measures the disks; disks under one RAID 0 add up",)
    return Slowdown(
        "nvme",
        "swapping to NVMe",
        share,
        tuple(evidence),
        _suggest_settings(settings),
        advice,
        measured_share is None,
    )


def _suggest_settings(settings: PlanSettings) -> tuple[SettingChange, ...]:
    """The states in host memory; or reads and writes that overlap with Adam."""
    changes: list[SettingChange] = []
    if settings.optimizer_device == "nvme":
        changes.append(SettingChange("the optimizer in host memory", _move_to_cpu("zero.offload_optimizer")))
        if not (settings.pipeline_read and settings.pipeline_write):
            sets = {"zero.offload_optimizer.pipeline_read": True, "zero.offload_optimizer.pipeline_write": True}
            changes.append(SettingChange("read and write while Adam computes", sets))
    if settings.param_device == "nvme":
        changes.append(SettingChange("parameters in host memory", _move_to_cpu("zero.offload_param")))
    if settings.optimizer_device == settings.param_device == "nvme":
        both = {**_move_to_cpu("zero.offload_optimizer"), **_move_to_cpu("zero.offload_param")}
        changes.append(SettingChange("optimizer and parameters in host memory", both))
    return tuple(changes)


def _move_to_cpu(section: str) -> dict[str, Any]:
    """The section on the CPU, without the keys of NVMe."""
    nvme_keys = (
        "nvme_path",
        "pipeline_read",
        "pipeline_write",
        "fast_init",
        "buffer_count",
        "buffer_size",
        "max_in_cpu",
    )
    return {f"{section}.device": "cpu", **{f"{section}.{key}": None for key in nvme_keys}}
