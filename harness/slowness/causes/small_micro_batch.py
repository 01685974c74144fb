"""Small micro-batch: too few tokens at once for the device to be busy, and everything that comes once a micro-batch
comes often.
"""

from __future__ import annotations

from harness.slowness.run_measurements import RunMeasurements, Slowdown, enlarge_micro_batch, format_percent

LIMIT = 0.30
MIN_TOKENS = 4096
"""Tokens of a micro-batch below which matrix products are seldom near the peak: a rule of thumb."""


def detect(case: RunMeasurements) -> Slowdown | None:
    """Accumulation of micro-batches below TOKENS, and computing far from what the plan assumes of the device."""
    s, plan, mfu = case.settings, case.plan, case.medians.get("mfu")
    if s is None or plan is None or mfu is None or s.accumulation < 2 or s.tokens_per_micro_batch >= MIN_TOKENS:
        return None
    reached = case.medians.get("hfu", mfu)
    computing = sum(case.measured_share(part) or 0.0 for part in ("forward", "backward", "pipeline")) or 1.0
    while_computing = reached / computing
    assumed = plan.rates.efficiency
    share = (1 - while_computing / assumed) * computing
    if share < LIMIT:
        return None
    evidence = (
        f"a micro-batch has {s.tokens_per_micro_batch:,} tokens, a step accumulates {s.accumulation} of them",
        f"while it computes, the device reaches {while_computing:.1%} of its peak; the plan assumes {format_percent(assumed)}",
    )
    advice = (
        "the plan counts compute at a fixed efficiency: its prediction is about the rest of the step, and memory",
    )
    return Slowdown("small-micro-batch", "a small micro-batch", share, evidence, enlarge_micro_batch(s), advice)
