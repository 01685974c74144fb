# SPDX-License-Identifier: Apache-2.0
"""The answer of `harness degrees`: a plan of any degrees of parallelism, and `--timeline`, the picture of its
schedule.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import typer

from harness.check.degrees_launch import find_launch_obstacles
from harness.cli.degree_request import find_price, request_from_options
from harness.cli.output_format import OutputFormat
from harness.cli.plan_option_checks import needs_tokens
from harness.cli.plan_output import write_text
from harness.cli.plan_states import parse_network
from harness.errors import ExitCode, UserError
from harness.plan.degrees.degrees_plan import DegreesPlan, plan_degrees
from harness.plan.degrees.pass_sequence import order_passes
from harness.plan.degrees.pipeline_timeline import simulate_timeline
from harness.plan.plan_usage import parse_count_option, usage_error
from harness.plan.time.pipeline_schedule import PassCost
from harness.plan.time.rates import Rates
from harness.views.plan_degrees import SCHEDULE_NAMES, degrees_as_dict, render_degrees
from harness.views.plan_timeline import render_timeline_svg
from harness.views.scaling_table import ScalingRow, render_scaling, scaling_as_dict
from harness.views.style import style_for

_MAX_BOXES = 20_000


def print_degrees(own: dict[str, Any], values: dict[str, Any]) -> None:
    """Print it, from the options of degrees and the others, by name. Raises UserError; Exit where it does not fit."""
    if own["scaling"] is not None:
        _print_scaling(own, values)
        return
    request, price = request_from_options(own, values), find_price(values)
    if price is not None and values["tokens"] is None:
        raise needs_tokens("--price")
    planned = plan_degrees(request, Rates(network=parse_network(own["network"]) or 0.0))
    tokens = None if values["tokens"] is None else parse_count_option("--tokens", values["tokens"])
    if own["timeline"] is not None:
        write_timeline(planned, own["timeline"])
    obstacles = find_launch_obstacles(request)
    if values["format"] is OutputFormat.json:
        print(json.dumps(degrees_as_dict(planned, tokens, price, obstacles), indent=2))
    else:
        print(render_degrees(planned, tokens, price, obstacles, style_for(sys.stdout)))
    if not planned.fits:
        raise typer.Exit(ExitCode.FINDINGS)


def _print_scaling(own: dict[str, Any], values: dict[str, Any]) -> None:
    """The same degrees on each number of GPUs. Raises UserError for words that are no numbers."""
    unread = {"--gpus": values["gpus"], "--timeline": own["timeline"], "--tokens": values["tokens"]}
    for option, value in {**unread, "--price": values["prices"]}.items():
        if value:
            message = f"`--scaling` has numbers of GPUs of its own, and `{option}` has no effect on its table"
            raise usage_error(message, "leave one of them out")
    words = [word.strip() for word in own["scaling"].split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise usage_error(f"`--scaling {own['scaling']}` is no list of numbers of GPUs", "write `--scaling 16,64,128`")
    rates, rows, errors = Rates(network=parse_network(own["network"]) or 0.0), [], []
    for count in sorted({int(word) for word in words}):
        request = request_from_options(own, {**values, "gpus": count})
        try:
            rows.append(ScalingRow(count, plan_degrees(request, rates)))
        except UserError as error:  # degrees that do not divide this number
            errors.append(error)
            rows.append(ScalingRow(count, None, error.findings[0].message))
    if len(errors) == len(rows):
        raise errors[0]
    if values["format"] is OutputFormat.json:
        print(json.dumps(scaling_as_dict(rows), indent=2))
    else:
        print(render_scaling(rows, style_for(sys.stdout)))
    if not any(row.plan is not None and row.plan.fits for row in rows):
        raise typer.Exit(ExitCode.FINDINGS)


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
    write_text(file, render_timeline_svg(timeline, title, chunks, degrees.schedule))
    print(f"Wrote {file}", file=sys.stderr)
