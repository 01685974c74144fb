# SPDX-License-Identifier: Apache-2.0
"""Recomputation: gradient checkpointing runs the layers' forward pass a second time."""

from __future__ import annotations

from harness.plan.checkpointed_layers import recompute_shares
from harness.plan.flops import NO_RECOMPUTATION, hardware_flops_per_token
from harness.slowness.run_measurements import (
    RunMeasurements,
    SettingChange,
    Slowdown,
    format_percent,
    scale_micro_batch,
)

LIMIT = 0.10


def detect(run: RunMeasurements) -> Slowdown | None:
    """More than a tenth of the FLOPs of a step, by the formula of the plan, is recomputation."""
    settings, plan = run.settings, run.plan
    if settings is None or plan is None or plan.model is None or not settings.checkpointing:
        return None
    shares = recompute_shares(settings, plan.model.num_layers)
    executed_flops = hardware_flops_per_token(plan.model, settings.seq_length, shares)
    recompute_share = 1 - hardware_flops_per_token(plan.model, settings.seq_length, NO_RECOMPUTATION) / executed_flops
    compute_share = sum(run.measured_share(part) or 0.0 for part in ("forward", "backward", "pipeline"))
    share = recompute_share * (compute_share or run.planned_share("compute") or 0.0)
    if share < LIMIT:
        return None
    evidence = [f"{format_percent(recompute_share)} of the executed FLOPs recompute activations of the forward pass"]
    if "mfu" in run.medians and "hfu" in run.medians:
        evidence.append(f"MFU is {run.medians['mfu']:.1%}, HFU, which counts them, {run.medians['hfu']:.1%}")
    changes = [SettingChange("activations kept", {"train.gradient_checkpointing": False})]
    for factor in (0.5, 0.25):
        sets = scale_micro_batch(settings, factor)
        if sets is not None:
            description = f"activations kept, with micro-batches of {sets['train.per_device_train_batch_size']}"
            changes.append(SettingChange(description, {"train.gradient_checkpointing": False, **sets}))
    return Slowdown("recompute", "recomputing activations", share, tuple(evidence), tuple(changes), is_planned=True)
