"""Offload-bound by CPU Adam: the optimizer's step runs in host memory, which every rank of a host shares."""

from __future__ import annotations

from typing import Any

from harness.plan.plan_settings import PlanSettings
from harness.slowness.run_measurements import RunMeasurements, SettingChange, Slowdown, format_percent
from harness.units import format_seconds

LIMIT = 0.20


def detect(case: RunMeasurements) -> Slowdown | None:
    """More than a fifth of the step in the optimizer, with its states on the CPU."""
    s = case.settings
    if s is None or s.optimizer_device != "cpu":
        return None
    measured, planned = case.measured_share("optimizer"), case.planned_share("CPU optimizer")
    share = measured if measured is not None else planned
    if share is None or share < LIMIT:
        return None
    evidence = []
    if measured is not None:
        spent = format_seconds(case.medians["seconds_optimizer"])
        evidence.append(
            f"`seconds_optimizer` is {spent} of a step of {format_seconds(case.step_seconds)} ({format_percent(share)})"
        )
    if planned is not None:
        evidence.append(f"the plan has {format_percent(planned)} of the step in the CPU's optimizer")
    advice = (
        "it takes as long whatever the batch: a larger `train.global_batch_size` has it less often (changes what is "
        "trained)",
        "`harness doctor --measure` tells the host's memory bandwidth, which bounds it",
    )
    return Slowdown(
        "cpu-optimizer",
        "the optimizer on the CPU",
        share,
        tuple(evidence),
        _suggest_settings(s),
        advice,
        measured is None,
    )


def _suggest_settings(s: PlanSettings) -> tuple[SettingChange, ...]:
    """The optimizer back on the device, at this stage or one that shards more; part of it there."""
    away: dict[str, Any] = {"zero.offload_optimizer": None}
    found = [] if s.param_device != "none" else [SettingChange("the optimizer on the device", away)]
    for stage in range(s.stage + 1, 4):
        found.append(
            SettingChange(f"ZeRO stage {stage} with the optimizer on the device", {**away, "zero.stage": stage})
        )
    if s.stage == 3:
        for ratio in (0.5, 0.8):
            if ratio < s.offload_ratio:
                words = f"{format_percent(1 - ratio)} of the optimizer on the device"
                found.append(SettingChange(words, {"zero.offload_optimizer.ratio": ratio}))
    return tuple(found)
