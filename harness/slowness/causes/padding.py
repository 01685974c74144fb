# SPDX-License-Identifier: Apache-2.0
"""Padding: computed positions without a token."""

from __future__ import annotations

from harness.plan.resolved_run import ATTN_IMPLEMENTATION
from harness.slowness.run_measurements import RunMeasurements, SettingChange, Slowdown, format_percent

LIMIT = 0.15


def detect(run: RunMeasurements) -> Slowdown | None:
    """More than 15% of the positions are padding."""
    tokens, positions = run.medians.get("step_tokens"), run.medians.get("step_positions")
    if not tokens or not positions or tokens > (1 - LIMIT) * positions:
        return None
    compute_share = sum(run.measured_share(part) or 0.0 for part in ("forward", "backward", "pipeline")) or 1.0
    share = (1 - tokens / positions) * compute_share
    evidence = (
        f"{positions:,.0f} positions a step hold {tokens:,.0f} tokens:"
        f" {format_percent(1 - tokens / positions)} is padding",
    )
    plan_run = run.plan.run if run.plan else None
    changes = []
    if plan_run is None or not plan_run.spec.data.packing:
        effect = "several records share a sequence without a mask, a step has more tokens"
        sets = {"data.packing": True, ATTN_IMPLEMENTATION: "auto"}
        changes.append(SettingChange("several records in a sequence", sets, effect))
    return Slowdown("padding", "padding", share, evidence, tuple(changes))
