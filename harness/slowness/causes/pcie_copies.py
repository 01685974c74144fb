# SPDX-License-Identifier: Apache-2.0
"""Offload-bound by PCIe: copies between device and host memory that computing does not hide."""

from __future__ import annotations

from typing import Any

from harness.plan.plan_settings import PlanSettings
from harness.slowness.run_measurements import (
    RunMeasurements,
    SettingChange,
    Slowdown,
    enlarge_micro_batch,
    format_percent,
)
from harness.units import format_bytes

LIMIT = 0.15


def detect(run: RunMeasurements) -> Slowdown | None:
    """More than 15% of the planned step is in copies. No clock measures copies, so the share is the plan's."""
    settings, plan = run.settings, run.plan
    if (
        settings is None
        or plan is None
        or plan.device is None
        or "none" == settings.optimizer_device == settings.param_device
    ):
        return None
    share = run.planned_share("PCIe", "PCIe at the step")
    if share is None or share < LIMIT:
        return None
    evidence = [f"the plan has {format_percent(share)} of the step in copies over PCIe that nothing hides"]
    num_bytes = (run.header_value("offload_to_host_bytes") or 0) + (run.header_value("offload_to_device_bytes") or 0)
    if num_bytes and run.step_seconds:
        evidence.append(
            f"{format_bytes(num_bytes)} a rank and step,"
            f" {format_bytes(num_bytes / run.step_seconds)}/s over the measured step;"
            f" {plan.device.name} has {format_bytes(plan.device.pcie)}/s in each direction"
        )
    return Slowdown(
        "pcie",
        "copies between device and host",
        share,
        tuple(evidence),
        _suggest_settings(settings),
        is_planned=True,
    )


def _suggest_settings(settings: PlanSettings) -> tuple[SettingChange, ...]:
    changes: list[SettingChange] = list(enlarge_micro_batch(settings, "micro-batches, which hide more of the copies,"))
    if settings.param_device != "none":
        changes.append(SettingChange("parameters on the device", {"zero.offload_param": None}))
    if settings.optimizer_device == "cpu":
        sets: dict[str, Any] = {"zero.offload_optimizer": None}
        if settings.param_device != "none":
            sets["zero.offload_param"] = None
        changes.append(SettingChange("nothing offloaded", sets))
        if not settings.pin_memory:
            changes.append(SettingChange("page-locked buffers", {"zero.offload_optimizer.pin_memory": True}))
    return tuple(changes)
