"""Communication-bound: ranks wait for collectives, or for each other in them."""

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
from harness.units import format_seconds

LIMIT = 0.20
_PLAN_PARTS = (
    "collectives",
    "parameters gathered after the step",
    "tensor and sequence parallelism",
    "pipeline messages",
)


def detect(case: RunMeasurements) -> Slowdown | None:
    """More than a fifth of the step in collectives; where that was not measured, as planned."""
    measured, planned = case.measured_share("communication"), case.planned_share(*_PLAN_PARTS)
    share = measured if measured is not None else planned
    if share is None or share < LIMIT or (case.header_value("world") or 2) < 2:
        return None
    evidence = []
    if measured is not None:
        spent = format_seconds(case.medians["seconds_communication"])
        evidence.append(
            f"`seconds_communication` is {spent} of a step of {format_seconds(case.step_seconds)} ({format_percent(share)})"
        )
    if planned is not None:
        evidence.append(f"the plan expects {format_percent(planned)} of the step in communication that nothing hides")
    if case.run_header.get("clock") == "device":
        evidence.append("by the device's clock, so what computation hides is counted too")
    s = case.settings
    return Slowdown(
        "communication",
        "communication",
        share,
        tuple(evidence),
        _suggest_settings(s) if s else (),
        ("waiting for a slow rank counts as communication on all others: look at the ranks beside each other",),
        is_planned=measured is None,
    )


def _suggest_settings(s: PlanSettings) -> tuple[SettingChange, ...]:
    """What moves less: fewer, larger micro-batches; a lower stage; overlap; ZeRO++ across hosts."""
    found = list(enlarge_micro_batch(s))
    for stage in range(1, s.stage):
        sets: dict[str, Any] = {"zero.stage": stage, "zero.offload_param": None}
        found.append(SettingChange(f"ZeRO stage {stage}, which gathers fewer parameters", sets))
    if s.stage in (1, 2, 3) and not s.overlap_comm:
        found.append(SettingChange("reduce while the backward pass goes on", {"zero.overlap_comm": True}))
    if s.stage == 3 and s.num_hosts > 1:
        sets = {"deepspeed.zero_optimization.zero_hpz_partition_size": s.ranks_per_host}
        found.append(SettingChange("a second shard inside each host (ZeRO++ hpZ)", sets))
    return tuple(found)
