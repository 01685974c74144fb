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


def detect(case: RunMeasurements) -> Slowdown | None:
    """More than 15% of the planned step; no clock of ours tells copies apart, so this is the plan's word."""
    s, plan = case.settings, case.plan
    if s is None or plan is None or plan.device is None or "none" == s.optimizer_device == s.param_device:
        return None
    share = case.planned_share("PCIe", "PCIe at the step")
    if share is None or share < LIMIT:
        return None
    evidence = [f"the plan has {format_percent(share)} of the step in copies over PCIe that nothing hides"]
    moved = (case.header_value("offload_to_host_bytes") or 0) + (case.header_value("offload_to_device_bytes") or 0)
    if moved and case.step_seconds:
        evidence.append(
            f"{format_bytes(moved)} a rank and step, {format_bytes(moved / case.step_seconds)}/s over the measured step; "
            f"{plan.device.name} has {format_bytes(plan.device.pcie)}/s in each direction"
        )
    return Slowdown(
        "pcie", "copies between device and host", share, tuple(evidence), _suggest_settings(s), is_planned=True
    )


def _suggest_settings(s: PlanSettings) -> tuple[SettingChange, ...]:
    found: list[SettingChange] = list(enlarge_micro_batch(s, "micro-batches, which hide more of the copies,"))
    if s.param_device != "none":
        found.append(SettingChange("parameters on the device", {"zero.offload_param": None}))
    if s.optimizer_device == "cpu":
        sets: dict[str, Any] = {"zero.offload_optimizer": None, "zero.offload_param": None}
        found.append(SettingChange("nothing offloaded", sets))
        if not s.pin_memory:
            found.append(SettingChange("page-locked buffers", {"zero.offload_optimizer.pin_memory": True}))
    return tuple(found)
