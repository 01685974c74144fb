# SPDX-License-Identifier: Apache-2.0
"""`harness degrees --timeline`: the picture of a pipeline's schedule, written to a file."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.plan.degrees.degrees_plan import DegreesPlan
from harness.plan.degrees.pass_sequence import order_passes
from harness.plan.degrees.pipeline_timeline import simulate_timeline
from harness.plan.plan_usage import usage_error
from harness.plan.time.pipeline_schedule import PassCost
from harness.views.plan_degrees import SCHEDULE_NAMES
from harness.views.plan_timeline import render_timeline_svg

_MAX_BOXES = 20_000


def write_timeline(planned: DegreesPlan, file: str) -> None:
    """The schedule with a backward pass of two forwards, and a line on stderr."""
    degrees, count = planned.request.degrees, planned.request.micro_batches
    if 3 * degrees.pipeline * degrees.virtual_stages * count > _MAX_BOXES:
        message = f"a timeline of {degrees.pipeline} stages and {count:,} micro-batches cannot be read"
        raise usage_error(message, "give fewer `--batch-tokens` for the picture")
    orders = order_passes(degrees.schedule, degrees.pipeline, count, degrees.virtual_stages)
    timeline = simulate_timeline(orders, [PassCost()] * degrees.pipeline)
    share = timeline.bubble / timeline.seconds
    title = f"{SCHEDULE_NAMES[degrees.schedule]}, {degrees.pipeline} stages, {count} micro-batches: {share:.1%} waiting"
    chunks = 2 if degrees.schedule == "dualpipe" else degrees.virtual_stages
    try:
        Path(file).write_text(render_timeline_svg(timeline, title, chunks, degrees.schedule), encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise usage_error(f"`{file}` cannot be written: {reason}", "name a file in a folder that exists") from None
    print(f"Wrote {file}", file=sys.stderr)
