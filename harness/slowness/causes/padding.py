"""Padding: positions that are computed and hold no token."""

from __future__ import annotations

from harness.slowness.run_measurements import RunMeasurements, SettingChange, Slowdown, format_percent

LIMIT = 0.15


def detect(case: RunMeasurements) -> Slowdown | None:
    """More than 15% of the positions."""
    tokens, positions = case.medians.get("step_tokens"), case.medians.get("step_positions")
    if not tokens or not positions or tokens > (1 - LIMIT) * positions:
        return None
    computing = sum(case.measured_share(part) or 0.0 for part in ("forward", "backward", "pipeline")) or 1.0
    share = (1 - tokens / positions) * computing
    evidence = (
        f"{positions:,.0f} positions a step hold {tokens:,.0f} tokens: {format_percent(1 - tokens / positions)} is padding",
    )
    run = case.plan.run if case.plan else None
    settings = []
    if run is None or not run.spec.data.packing:
        effect = "several records share a sequence, a step has more tokens"
        settings.append(SettingChange("several records in a sequence", {"data.packing": True}, effect))
    return Slowdown("padding", "padding", share, evidence, tuple(settings))
