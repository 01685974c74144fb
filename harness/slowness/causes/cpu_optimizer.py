# SPDX-License-Identifier: Apache-2.0
"""Offload-bound by CPU Adam: the optimizer's step runs in host memory, which every rank of a host shares."""

from __future__ import annotations

from typing import Any

from harness.plan.plan_settings import PlanSettings
from harness.slowness.run_measurements import RunMeasurements, SettingChange, Slowdown, format_percent

LIMIT = 0.20


def detect(run: RunMeasurements) -> Slowdown | None:
    """More than a fifth of the step is in the optimizer, with its states on the CPU."""
    settings = run.settings
    if settings is None or settings.optimizer_device != "cpu":
        return None
    measured_share, planned_share = run.measured_share("optimizer"), run.planned_share("CPU optimizer")
    share = measured_share if measured_share is not None else planned_share
    if share is None or share < LIMIT:
        return None
    evidence = []
    if measured_share is not None:
        evidence.append(run.describe_share("optimizer"))
    if planned_share is not None:
        evidence.append(f"the plan has {format_percent(planned_share)} of the step in the CPU's optimizer")
    advice = (
        "its time does not depend on the batch: with a larger `train.global_batch_size` it runs less often (changes "
        "what is trained)",
        "`harness doctor --measure` measures the host's memory bandwidth, which bounds it",
    )
    return Slowdown(
        "cpu-optimizer",
        "the optimizer on the CPU",
        share,
        tuple(evidence),
        _suggest_settings(settings),
        advice,
        measured_share is None,
    )


def _suggest_settings(settings: PlanSettings) -> tuple[SettingChange, ...]:
    """The optimizer on the device, at this stage or a higher one; or a part of it there."""
    on_device: dict[str, Any] = {"zero.offload_optimizer": None}
    changes = [] if settings.param_device != "none" else [SettingChange("the optimizer on the device", on_device)]
    for stage in range(settings.stage + 1, 4):
        changes.append(
            SettingChange(f"ZeRO stage {stage} with the optimizer on the device", {**on_device, "zero.stage": stage})
        )
    if settings.stage == 3:
        for ratio in (0.5, 0.8):
            if ratio < settings.offload_ratio:
                description = f"{format_percent(1 - ratio)} of the optimizer on the device"
                changes.append(SettingChange(description, {"zero.offload_optimizer.ratio": ratio}))
    return tuple(changes)
