# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and failures of a plan as text: sizes, the best interval, and what the run's own one loses."""

from __future__ import annotations

from harness.plan.planner import Plan
from harness.plan.time.goodput import CheckpointCost
from harness.units import format_bytes, format_seconds


def describe_checkpoints(cost: CheckpointCost, gpus: int) -> str:
    """`a checkpoint is ... and takes ...; one every ... costs least`, with the time between failures."""
    size, seconds = format_bytes(cost.bytes), format_seconds(cost.seconds)
    background = f" in the background, of which the run waits {format_seconds(cost.waits)}"
    waits = background if cost.waits != cost.seconds else ""
    return (
        f"a checkpoint is {size} and takes {seconds}{waits}; a failure of one of {gpus:,} GPUs every"
        f" {_hours(cost.failure_seconds)}; one every {format_seconds(cost.interval)} "
        f"costs least ({cost.lost:.1%} of the time, failures included)"
    )


def checkpoint_lines(plan: Plan) -> list[str]:
    """The lines of `harness plan --long`."""
    if plan.checkpoint_cost is None or plan.settings is None:
        return []
    lines = [describe_checkpoints(plan.checkpoint_cost, plan.settings.world_size)]
    saves = plan.saves_at(plan.time)
    if saves is not None:
        lines.append(
            f"`checkpoint.save_steps: {saves.save_steps}` saves every {format_seconds(saves.interval)}: saves take"
            f" {saves.save_share:.1%} and failures {saves.failure_share:.1%} of the time; a failure loses"
            f" {format_seconds(saves.failure_loses)} on average"
        )
    return lines


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.0f} hours" if seconds >= 36_000 else format_seconds(seconds)
