# SPDX-License-Identifier: Apache-2.0
"""`harness plan` with degrees of parallelism, and its tables of states: options, and what they print."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

import typer

from harness.check.degrees_launch import find_launch_obstacles
from harness.cli import degree_options as options
from harness.cli.degree_request import find_price, request_from_options
from harness.cli.output_format import OutputFormat
from harness.cli.plan_modes import DEGREES, refuse_unread_options
from harness.cli.plan_option_checks import needs_tokens
from harness.cli.plan_params import parse_network, print_bare_count
from harness.cli.plan_states import STATES_MODES, print_states
from harness.cli.plan_timeline import write_timeline
from harness.errors import ExitCode
from harness.plan.degrees.degrees_plan import plan_degrees
from harness.plan.plan_usage import parse_count_option
from harness.plan.time.rates import Rates
from harness.views.plan_degrees import degrees_as_dict, render_degrees
from harness.views.style import style_for


def _degree_options(
    tensor: options.TensorOption = None,
    pipeline: options.PipelineOption = None,
    context: options.ContextOption = None,
    expert: options.ExpertOption = None,
    virtual_stages: options.VirtualStagesOption = None,
    schedule: options.ScheduleOption = None,
    micro_batch: options.MicroBatchOption = None,
    precision: options.PrecisionOption = None,
    checkpointing: options.CheckpointingOption = None,
    states: options.StatesOption = None,
    sequence_parallel: options.SequenceParallelOption = None,
    timeline: options.TimelineOption = None,
    table: options.TableOption = False,
    non_state_peak: options.NonStatePeakOption = None,
    network: options.NetworkOption = None,
    gradients: options.GradientsOption = None,
) -> None:
    """The signature alone."""


_OPTIONS = inspect.signature(_degree_options, eval_str=True).parameters


def with_degrees(command: Callable[..., None]) -> Callable[..., None]:
    """`harness plan` with the options of degrees and of tables; without any of these, `command` runs."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [*signature.parameters.values(), *_OPTIONS.values()]
    names = {each.name: _name_option(each) for each in parameters}
    defaults = {each.name: each.default for each in parameters}

    @functools.wraps(command)
    def plan(**values: Any) -> None:
        mode = refuse_unread_options(values, defaults, names)
        own = {name: values.pop(name) for name in _OPTIONS}
        if mode.name == DEGREES:
            _print_degrees(own, values)
        elif mode.name in STATES_MODES:
            print_states(own, values)
        elif mode.name == "--params":
            print_bare_count(own, values)
        else:
            if (network := parse_network(own["network"])) is not None:
                values["overrides"] = [*(values["overrides"] or ()), f"cluster.network_bandwidth={network:.0f}"]
            command(**values)

    plan.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    plan.__annotations__ = {each.name: each.annotation for each in parameters}
    return plan


def _name_option(parameter: inspect.Parameter) -> str:
    """The option as the user writes it."""
    written = (getattr(item, "default", None) for item in parameter.annotation.__metadata__)
    return next((text.partition("/")[0] for text in written if isinstance(text, str)), parameter.name)


def _print_degrees(own: dict[str, Any], values: dict[str, Any]) -> None:
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
