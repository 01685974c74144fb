"""Recomputation: gradient checkpointing runs the layers' forward pass a second time."""

from __future__ import annotations

from harness.plan.flops import hardware_flops_per_token
from harness.slowness.run_measurements import (
    RunMeasurements,
    SettingChange,
    Slowdown,
    format_percent,
    scale_micro_batch,
)

LIMIT = 0.10


def detect(case: RunMeasurements) -> Slowdown | None:
    """More than a tenth of what is computed, by the counted FLOPs; else by the formula of the plan."""
    s, plan = case.settings, case.plan
    if s is None or plan is None or plan.model is None or not s.checkpointing:
        return None
    done = hardware_flops_per_token(plan.model, s.seq_length, checkpointing=True)
    again = 1 - hardware_flops_per_token(plan.model, s.seq_length, checkpointing=False) / done
    computing = sum(case.measured_share(part) or 0.0 for part in ("forward", "backward", "pipeline"))
    share = again * (computing or case.planned_share("compute") or 0.0)
    if share < LIMIT:
        return None
    evidence = [f"{format_percent(again)} of the FLOPs that are executed recompute what the forward pass had already"]
    if "mfu" in case.medians and "hfu" in case.medians:
        evidence.append(f"MFU is {case.medians['mfu']:.1%}, HFU, which counts them, {case.medians['hfu']:.1%}")
    settings = [SettingChange("activations kept", {"train.gradient_checkpointing": False})]
    for factor in (0.5, 0.25):
        sets = scale_micro_batch(s, factor)
        if sets is not None:
            words = f"activations kept, with micro-batches of {sets['train.per_device_train_batch_size']}"
            settings.append(SettingChange(words, {"train.gradient_checkpointing": False, **sets}))
    return Slowdown("recompute", "recomputing activations", share, tuple(evidence), tuple(settings), is_planned=True)
