"""Recomputation: gradient checkpointing runs the layers' forward pass a second time."""

from __future__ import annotations

from harness.plan.flops import flops_per_token
from harness.slowness.case import Case, Setting, Slow, batches, percent

LIMIT = 0.10


def look(case: Case) -> Slow | None:
    """More than a tenth of what is computed, by the counted FLOPs; else by the formula of the plan."""
    s, plan = case.settings, case.plan
    if s is None or plan is None or plan.model is None or not s.checkpointing:
        return None
    done = flops_per_token(plan.model, s.sequence, checkpointing=True)
    again = 1 - flops_per_token(plan.model, s.sequence, checkpointing=False) / done
    computing = sum(case.share(part) or 0.0 for part in ("forward", "backward", "pipeline"))
    share = again * (computing or case.planned("compute") or 0.0)
    if share < LIMIT:
        return None
    evidence = [f"{percent(again)} of the FLOPs that are executed recompute what the forward pass had already"]
    if "mfu" in case.measured and "hfu" in case.measured:
        evidence.append(f"MFU is {case.measured['mfu']:.1%}, HFU, which counts them, {case.measured['hfu']:.1%}")
    settings = [Setting("activations kept", {"train.gradient_checkpointing": False})]
    for factor in (0.5, 0.25):
        sets = batches(s, factor)
        if sets is not None:
            words = f"activations kept, with micro-batches of {sets['train.per_device_train_batch_size']}"
            settings.append(Setting(words, {"train.gradient_checkpointing": False, **sets}))
    return Slow("recompute", "recomputing activations", share, tuple(evidence), tuple(settings), planned=True)
