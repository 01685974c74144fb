"""Stages 1 and 2: each gradient is summed on the rank that owns it, instead of on all ranks."""

from __future__ import annotations

from harness.plan.choices.choice import Choice
from harness.plan.choices.facts import Facts

_KEY = "use_multi_rank_bucket_allreduce"


def choose(facts: Facts) -> Choice | None:
    """By default every bucket is all-reduced and all but a slice thrown away (`stage_1_and_2.py`,
    `average_tensor`): twice the bytes of the sum. Expert groups and Muon's whole matrices go other ways.
    """
    spec, data = facts.run.spec, facts.run.degrees.data
    reduces = spec.zero.reduce_scatter is not False and facts.silent("reduce_scatter")
    dense = facts.model is not None and not facts.model.experts
    if facts.stage not in (1, 2) or not facts.plain or not reduces or not facts.silent(_KEY) or not dense:
        return None
    if data is None or data < 2 or spec.optimizer.type == "muon" or "optimizer" in spec.deepspeed:
        return None
    reason = "gradients are summed on the rank that owns them, half the bytes of an all-reduce"
    return Choice("gradients to their owners", f"zero_optimization.{_KEY}", False, True, reason)
