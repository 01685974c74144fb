# SPDX-License-Identifier: Apache-2.0
"""`harness plan`, `size`, `simulate`, `calibrate` and `degrees`: one planner, to each command the options of its
questions.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

import typer

from harness.check.degrees_launch import find_launch_obstacles
from harness.cli import degree_options as degree
from harness.cli import plan_options as options
from harness.cli import simulation_options as simulation
from harness.cli.degree_request import find_price, request_from_options
from harness.cli.options import HereOption, HostfileOption, SetOption, WorldSizeOption
from harness.cli.output_format import OutputFormat
from harness.cli.plan_answer import print_plan
from harness.cli.plan_modes import DEGREES, Mode, refuse_unread_options
from harness.cli.plan_option_checks import needs_tokens
from harness.cli.plan_states import STATES_MODES, print_states
from harness.cli.plan_timeline import write_timeline
from harness.errors import ExitCode
from harness.plan.degrees.degrees_plan import plan_degrees
from harness.plan.plan_usage import parse_count_option
from harness.views.plan_degrees import degrees_as_dict, render_degrees
from harness.views.style import style_for

_COMMANDS = {"--simulate": "simulate SPEC", "--calibrate": "calibrate RUN", DEGREES: "degrees"}
"""The commands of questions that `harness plan` answers for those who still ask it; `size` of the others."""


def _all_options(
    spec: options.OptionalSpec = None,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    here: HereOption = False,
    model: options.ModelOption = None,
    params: options.ParamsOption = None,
    gpus: options.GpusOption = None,
    gpu: options.GpuOption = None,
    gpus_per_node: options.GpusPerNodeOption = None,
    host_memory: options.HostMemoryOption = None,
    nvme: options.NvmeOption = None,
    zero_stage: options.ZeroStageOption = None,
    max_length: options.MaxLengthOption = None,
    batch_tokens: options.BatchTokensOption = None,
    tokens: options.TokensOption = None,
    prices: options.PriceOption = None,
    deadline: options.DeadlineOption = None,
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.text,
    long: options.LongOption = False,
    search: options.SearchOption = False,
    min_gpus: options.MinGpusOption = False,
    cheapest: options.CheapestOption = False,
    longest: options.LongestOption = False,
    largest_model: options.LargestModelOption = False,
    price_file: options.PriceFileOption = None,
    write: options.WriteOption = None,
    plot: options.PlotOption = None,
    calibrate: options.CalibrateOption = None,
    calibration: options.CalibrationOption = None,
    simulate: simulation.SimulateOption = False,
    rank: simulation.RankOption = None,
    layers: simulation.LayersOption = None,
    races: simulation.RacesOption = False,
    trace: simulation.TraceOption = None,
    tensor: degree.TensorOption = None,
    pipeline: degree.PipelineOption = None,
    context: degree.ContextOption = None,
    expert: degree.ExpertOption = None,
    virtual_stages: degree.VirtualStagesOption = None,
    schedule: degree.ScheduleOption = None,
    micro_batch: degree.MicroBatchOption = None,
    precision: degree.PrecisionOption = None,
    checkpointing: degree.CheckpointingOption = None,
    states: degree.StatesOption = None,
    sequence_parallel: degree.SequenceParallelOption = None,
    timeline: degree.TimelineOption = None,
    table: degree.TableOption = False,
    non_state_peak: degree.NonStatePeakOption = None,
) -> None:
    """The options of all questions, once; a signature alone."""


_OPTIONS = inspect.signature(_all_options, eval_str=True).parameters
_DEFAULTS = {name: each.default for name, each in _OPTIONS.items()}
_OF_DEGREES = tuple(_OPTIONS)[tuple(_OPTIONS).index("tensor") :]


def make_command(
    name: str,
    text: str,
    shown: str,
    *,
    hidden: bool = False,
    fixed: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Callable[..., None]:
    """The function of a command, for typer.

    Args:
        name: that of the command, `plan`.
        text: its help.
        shown: the parameters that it has, of those of all questions, with a space between.
        hidden: the command takes all others, too, and its help leaves them out.
        fixed: values that it has by itself.
        arguments: the type, for typer, of a parameter that is an argument here and no option elsewhere.
    """
    fixed, arguments = fixed or {}, arguments or {}
    names = [*arguments, *(each for each in shown.split() if each not in arguments)]
    parameters = [_parameter(each, arguments.get(each)) for each in names]
    if hidden:
        parameters += [_hide(each) for name, each in _OPTIONS.items() if name not in names]

    def command(**values: Any) -> None:
        merged = {**_DEFAULTS, **values}
        _run(name, merged | {key: value for key, value in fixed.items() if merged[key] == _DEFAULTS[key]})

    command.__name__, command.__doc__ = name, text
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(name: str, argument: Any) -> inspect.Parameter:
    return _OPTIONS[name] if argument is None else _OPTIONS[name].replace(annotation=argument, default=inspect._empty)


def _hide(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, info = get_args(parameter.annotation)
    info = copy.copy(info)
    info.hidden = True
    return parameter.replace(annotation=Annotated[kind, info])


def _run(command: str, values: dict[str, Any]) -> None:
    """Answer the question that these options ask. Raises UserError where one of them has no effect on the answer."""
    mode = refuse_unread_options(values, _DEFAULTS, {each.name: _name_option(each) for each in _OPTIONS.values()})
    if command == "plan":
        _advise(mode, values)
    own = {name: values[name] for name in _OF_DEGREES}
    if mode.name == DEGREES:
        _print_degrees(own, values)
    elif mode.name in STATES_MODES:
        print_states(own, values)
    else:
        print_plan({name: value for name, value in values.items() if name not in own})


def _advise(mode: Mode, values: Mapping[str, Any]) -> None:
    """A line on stderr for a question that has a command of its own."""
    successor = _COMMANDS.get(mode.name, None if values["spec"] is not None else "size")
    if successor is not None:
        print(f"`harness {successor}` answers this; `harness plan` does so until release 1.0.", file=sys.stderr)


def _name_option(parameter: inspect.Parameter) -> str:
    """The option as the user writes it."""
    written = (getattr(item, "default", None) for item in parameter.annotation.__metadata__)
    return next((text.partition("/")[0] for text in written if isinstance(text, str)), parameter.name)


def _print_degrees(own: dict[str, Any], values: dict[str, Any]) -> None:
    request, price = request_from_options(own, values), find_price(values)
    if price is not None and values["tokens"] is None:
        raise needs_tokens("--price")
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
