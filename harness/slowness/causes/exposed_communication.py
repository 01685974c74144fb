# SPDX-License-Identifier: Apache-2.0
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

LIMIT = 0.20
_PLAN_PARTS = (
    "collectives",
    "parameters gathered after the step",
    "tensor and sequence parallelism",
    "pipeline messages",
)


def detect(run: RunMeasurements) -> Slowdown | None:
    """More than a fifth of the step is in collectives; without a measurement, by the plan."""
    measured_share, planned_share = (
        run.measured_share("communication"),
        run.planned_share(*_PLAN_PARTS),
    )
    share = measured_share if measured_share is not None else planned_share
    if share is None or share < LIMIT or (run.header_value("world") or 2) < 2:
        return None
    evidence = []
    if measured_share is not None:
        evidence.append(run.describe_share("communication"))
    if planned_share is not None:
        evidence.append(
            f"the plan expects {format_percent(planned_share)} of the step in communication that nothing hides"
        )
    if run.run_header.get("clock") == "device":
        evidence.append("timed on the device, so communication hidden by computation is counted, too")
    settings = run.settings
    return Slowdown(
        "communication",
        "communication",
        share,
        tuple(evidence),
        _suggest_settings(settings) if settings else (),
        ("waiting for a slow rank counts as communication on all others: compare the busy time of the ranks",),
        is_planned=measured_share is None,
    )


def _suggest_settings(settings: PlanSettings) -> tuple[SettingChange, ...]:
    """Settings that move less: fewer, larger micro-batches; a lower stage; overlap; ZeRO++ across hosts."""
    changes = list(enlarge_micro_batch(settings))
    without_offload = {} if settings.param_device == "none" else {"zero.offload_param": None}
    for stage in range(1, settings.stage):
        sets: dict[str, Any] = {"zero.stage": stage, **without_offload}
        changes.append(SettingChange(f"ZeRO stage {stage}, which gathers fewer parameters", sets))
    if settings.stage in (1, 2, 3) and not settings.overlap_comm:
        changes.append(SettingChange("reduce during the backward pass", {"zero.overlap_comm": True}))
    if settings.stage == 3 and settings.num_hosts > 1:
        sets = {"deepspeed.zero_optimization.zero_hpz_partition_size": settings.ranks_per_host}
        changes.append(SettingChange("a second shard inside each host (ZeRO++ hpZ)", sets))
    return tuple(changes)
