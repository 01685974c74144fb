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
from harness.cli.plan_states import is_states_question, print_states
from harness.cli.plan_timeline import write_timeline
from harness.errors import ExitCode
from harness.plan.degrees.degrees_plan import plan_degrees
from harness.plan.plan_usage import parse_count_option, usage_error
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
) -> None:
    """The signature alone."""


_OPTIONS = inspect.signature(_degree_options, eval_str=True).parameters
_STARTERS = ("tensor", "pipeline", "context", "expert", "virtual_stages", "schedule", "timeline")


def with_degrees(command: Callable[..., None]) -> Callable[..., None]:
    """`harness plan` with the options of degrees and of tables; without any of these, `command` runs."""
    signature = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def plan(**values: Any) -> None:
        own = {name: values.pop(name) for name in _OPTIONS}
        if any(own[name] is not None for name in _STARTERS):
            _print_degrees(own, values)
            return
        if is_states_question(own, values):
            print_states(own, values)
            return
        given = [name for name, value in own.items() if value not in (None, False)]
        if given:
            option = "--" + given[0].replace("_", "-")
            raise usage_error(f"`{option}` goes with degrees of parallelism", "give `--tensor` or `--pipeline`, too")
        command(**values)

    parameters = [*signature.parameters.values(), *_OPTIONS.values()]
    plan.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    plan.__annotations__ = {each.name: each.annotation for each in parameters}
    return plan


def _print_degrees(own: dict[str, Any], values: dict[str, Any]) -> None:
    request, price = request_from_options(own, values), find_price(values)
    planned = plan_degrees(request)
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
