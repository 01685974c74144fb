# SPDX-License-Identifier: Apache-2.0
"""Small micro-batch: too few tokens to keep the device busy, and more of everything that each micro-batch costs."""

from __future__ import annotations

from harness.plan.fitted_rates import FITTED
from harness.plan.planner import Plan
from harness.slowness.run_measurements import RunMeasurements, Slowdown, enlarge_micro_batch, format_percent

LIMIT = 0.30
MIN_TOKENS = 4096
"""Tokens of a micro-batch below which matrix products are seldom near the peak: a rule of thumb."""


def detect(run: RunMeasurements) -> Slowdown | None:
    """Micro-batches below MIN_TOKENS accumulate, and compute is far below the efficiency of the plan."""
    settings, plan, mfu = run.settings, run.plan, run.medians.get("mfu")
    if (
        settings is None
        or plan is None
        or mfu is None
        or settings.accumulation < 2
        or settings.tokens_per_micro_batch >= MIN_TOKENS
    ):
        return None
    utilization = run.medians.get("hfu", mfu)
    compute_share = sum(run.measured_share(part) or 0.0 for part in ("forward", "backward", "pipeline")) or 1.0
    compute_utilization = utilization / compute_share
    efficiency = _large_product_share(plan)
    if efficiency is None:
        return None
    share = (1 - compute_utilization / efficiency) * compute_share
    if share < LIMIT:
        return None
    evidence = (
        f"a micro-batch has {settings.tokens_per_micro_batch:,} tokens,"
        f" a step accumulates {settings.accumulation} of them",
        f"while it computes, the device reaches {compute_utilization:.1%} of its peak;"
        f" large matrix products reach {format_percent(efficiency)}",
    )
    advice = ("the plan's share for large matrix products was fitted to published runs",)
    return Slowdown("small-micro-batch", "a small micro-batch", share, evidence, enlarge_micro_batch(settings), advice)


def _large_product_share(plan: Plan) -> float | None:
    """Share of the peak that this model's products reach with many tokens: given by the spec, or fitted."""
    if plan.rates.efficiency:
        return plan.rates.efficiency
    if plan.model is None or plan.device is None:
        return None
    return FITTED.matmul_share(plan.device.name, plan.model.hidden, 2 * MIN_TOKENS)
