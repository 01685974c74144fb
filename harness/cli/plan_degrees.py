# SPDX-License-Identifier: Apache-2.0
"""The answer of `harness degrees`: a plan of any degrees of parallelism."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer

from harness.check.degrees_launch import find_launch_obstacles
from harness.cli.degree_request import find_price, request_from_options
from harness.cli.output_format import OutputFormat
from harness.cli.plan_option_checks import needs_tokens
from harness.cli.plan_params import parse_network
from harness.cli.plan_timeline import write_timeline
from harness.errors import ExitCode
from harness.plan.degrees.degrees_plan import plan_degrees
from harness.plan.plan_usage import parse_count_option
from harness.plan.time.rates import Rates
from harness.views.plan_degrees import degrees_as_dict, render_degrees
from harness.views.style import style_for


def print_degrees(own: dict[str, Any], values: dict[str, Any]) -> None:
    """Print it, from the options of degrees and the others, by name. Raises UserError; Exit where it does not fit."""
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
