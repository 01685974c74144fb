"""Offload-bound by PCIe: copies between device and host memory that computing does not hide."""

from __future__ import annotations

from typing import Any

from harness.plan.settings import Settings
from harness.slowness.case import Case, Setting, Slow, larger, percent
from harness.units import format_bytes

LIMIT = 0.15


def look(case: Case) -> Slow | None:
    """More than 15% of the planned step; no clock of ours tells copies apart, so this is the plan's word."""
    s, plan = case.settings, case.plan
    if s is None or plan is None or plan.device is None or "none" == s.optimizer_at == s.parameters_at:
        return None
    share = case.planned("PCIe", "PCIe at the step")
    if share is None or share < LIMIT:
        return None
    evidence = [f"the plan has {percent(share)} of the step in copies over PCIe that nothing hides"]
    moved = (case.told("offload_to_host_bytes") or 0) + (case.told("offload_to_device_bytes") or 0)
    if moved and case.step:
        evidence.append(
            f"{format_bytes(moved)} a rank and step, {format_bytes(moved / case.step)}/s over the measured step; "
            f"{plan.device.name} has {format_bytes(plan.device.pcie)}/s in each direction"
        )
    return Slow("pcie", "copies between device and host", share, tuple(evidence), _settings(s), planned=True)


def _settings(s: Settings) -> tuple[Setting, ...]:
    found: list[Setting] = list(larger(s, "micro-batches, which hide more of the copies,"))
    if s.parameters_at != "none":
        found.append(Setting("parameters on the device", {"zero.offload_param": None}))
    if s.optimizer_at == "cpu":
        sets: dict[str, Any] = {"zero.offload_optimizer": None, "zero.offload_param": None}
        found.append(Setting("nothing offloaded", sets))
        if not s.pin_memory:
            found.append(Setting("page-locked buffers", {"zero.offload_optimizer.pin_memory": True}))
    return tuple(found)
