# SPDX-License-Identifier: Apache-2.0
"""The parameters of `harness plan` and of the commands beside it, each once: a signature for typer."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from harness.cli import degree_options as degree
from harness.cli import plan_options as options
from harness.cli.completion import complete_run
from harness.cli.options import AllowCodeOption, HereOption, HostfileOption, SetOption, WorldSizeOption, option_of
from harness.cli.output_format import OutputFormat

_panel_option = option_of("Simulation")
SimulateOption = Annotated[
    bool,
    _panel_option(
        "--simulate",
        help="Run DeepSpeed's engine at full size on a simulated GPU, and show bytes and time next to the plan's.",
    ),
]
RacesOption = Annotated[bool, _panel_option("--races", help="Find unordered accesses.")]
RankOption = Annotated[int | None, _panel_option("--rank", metavar="N", help="The rank. Default: 0.")]
LayersOption = Annotated[
    int | None, _panel_option("--layers", metavar="K", help="K layers and half as many, extrapolated to the model's.")
]
TraceOption = Annotated[
    str | None,
    _panel_option(
        "--trace",
        metavar="FILE",
        help="Write a step's kernels, collectives, copies and disk traffic for Perfetto (JSON).",
    ),
]
CalibrateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--calibrate",
        metavar="RUN",
        help="Instead of planning, fit this machine's constants to the step times and peaks of a run. Repeatable.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
CalibrationOption = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="FILE",
        help="The file of calibrations. Default: your own, which `harness calibrate` writes and a plan reads.",
    ),
]


def all_options(
    spec: options.OptionalSpec = None,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    here: HereOption = False,
    allow_local_code: AllowCodeOption = False,
    model: options.ModelOption = None,
    offline: options.OfflineOption = False,
    lora: options.LoraOption = False,
    qlora: options.QloraOption = False,
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
    epochs: options.EpochsOption = None,
    prices: options.PriceOption = None,
    deadline: options.DeadlineOption = None,
    measured: options.MeasuredOption = None,
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.text,
    long: options.LongOption = False,
    trainer: options.TrainerOption = None,
    search: options.SearchOption = False,
    min_gpus: options.MinGpusOption = False,
    cheapest: options.CheapestOption = False,
    longest: options.LongestOption = False,
    largest_model: options.LargestModelOption = False,
    price_file: options.PriceFileOption = None,
    write: options.WriteOption = None,
    plot: options.PlotOption = None,
    html: options.HtmlOption = None,
    calibrate: CalibrateOption = None,
    calibration: CalibrationOption = None,
    simulate: SimulateOption = False,
    rank: RankOption = None,
    layers: LayersOption = None,
    races: RacesOption = False,
    trace: TraceOption = None,
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
    scaling: degree.ScalingOption = None,
    table: degree.TableOption = False,
    non_state_peak: degree.NonStatePeakOption = None,
    network: degree.NetworkOption = None,
    gradients: degree.GradientsOption = None,
) -> None:
    """The options of all questions, once; a signature alone."""


OPTIONS = inspect.signature(all_options, eval_str=True).parameters
DEFAULTS = {name: each.default for name, each in OPTIONS.items()}
OF_DEGREES = tuple(OPTIONS)[tuple(OPTIONS).index("tensor") :]
