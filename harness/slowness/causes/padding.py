"""Padding: positions that are computed and hold no token."""

from __future__ import annotations

from harness.slowness.case import Case, Setting, Slow, percent

LIMIT = 0.15


def look(case: Case) -> Slow | None:
    """More than 15% of the positions."""
    tokens, positions = case.measured.get("step_tokens"), case.measured.get("step_positions")
    if not tokens or not positions or tokens > (1 - LIMIT) * positions:
        return None
    computing = sum(case.share(part) or 0.0 for part in ("forward", "backward", "pipeline")) or 1.0
    share = (1 - tokens / positions) * computing
    evidence = (
        f"{positions:,.0f} positions a step hold {tokens:,.0f} tokens: {percent(1 - tokens / positions)} is padding",
    )
    run = case.plan.run if case.plan else None
    settings = []
    if run is None or not run.spec.data.packing:
        effect = "several records share a sequence, a step has more tokens"
        settings.append(Setting("several records in a sequence", {"data.packing": True}, effect))
    return Slow("padding", "padding", share, evidence, tuple(settings))
