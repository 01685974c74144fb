# SPDX-License-Identifier: Apache-2.0
"""Options of `harness plan` alone, for typer. Nothing here looks at a value."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from harness.cli.completion import complete_run


class Trainer(StrEnum):
    """The keys of `plan.trainer_loop.TRAINERS`."""

    trainer = "trainer"
    llama_factory = "llama-factory"
    axolotl = "axolotl"
    swift = "swift"
    accelerate = "accelerate"


_MODEL, _SEARCH = "Model and GPUs", "Search"
_Text = str | None
_Number = int | None
OptionalSpec = Annotated[_Text, typer.Argument(metavar="[SPEC]", help="A run spec (YAML).", show_default=False)]
ModelOption = Annotated[
    _Text,
    typer.Option("--model", metavar="NAME", help="A model of the catalogue, or a folder.", rich_help_panel=_MODEL),
]
ParamsOption = Annotated[
    _Text,
    typer.Option(
        "--params",
        metavar="COUNT",
        help="Instead of a model: a bare count of parameters, such as 70e9.",
        rich_help_panel=_MODEL,
    ),
]
GpusOption = Annotated[_Number, typer.Option("--gpus", metavar="N", help="Number of GPUs.", rich_help_panel=_MODEL)]
GpuOption = Annotated[
    _Text, typer.Option("--gpu", metavar="KIND", help="Kind of GPU, such as H100-80GB.", rich_help_panel=_MODEL)
]
GpusPerNodeOption = Annotated[
    _Number, typer.Option("--gpus-per-node", metavar="N", help="GPUs per host. Default: 8.", rich_help_panel=_MODEL)
]
HostMemoryOption = Annotated[
    _Text, typer.Option("--host-memory", metavar="SIZE", help="Memory per host, such as 2TB.", rich_help_panel=_MODEL)
]
NvmeOption = Annotated[
    _Text,
    typer.Option("--nvme", metavar="SIZE", help="Local disks per host, such as 8x3.5TB.", rich_help_panel=_MODEL),
]
ZeroStageOption = Annotated[
    _Number,
    typer.Option("--zero-stage", metavar="0-3", help="ZeRO stage. Default: the fastest.", rich_help_panel=_MODEL),
]
MaxLengthOption = Annotated[
    _Number,
    typer.Option(
        "--max-length",
        metavar="N",
        help="Tokens per sequence. Default: 4096, or the model's positions.",
        rich_help_panel=_MODEL,
    ),
]
BatchTokensOption = Annotated[
    _Text,
    typer.Option("--batch-tokens", metavar="COUNT", help="Tokens per step. Default: 1048576.", rich_help_panel=_MODEL),
]
TokensOption = Annotated[
    _Text, typer.Option("--tokens", metavar="COUNT", help="Tokens of the whole run, to estimate hours and cost.")
]
PriceOption = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="X", help="Price of a GPU hour, for the cost; KIND=X, repeatable, for --cheapest."),
]
TrainerOption = Annotated[
    Trainer | None,
    typer.Option("--as", help="Plan the loop of this trainer instead of that of `harness launch`.", show_default=False),
]
SearchOption = Annotated[
    bool,
    typer.Option("--search", help="Find the fastest settings that fit and pass the gates.", rich_help_panel=_SEARCH),
]
MinGpusOption = Annotated[
    bool,
    typer.Option("--min-gpus", help="Find the smallest number of GPUs on which the run fits.", rich_help_panel=_SEARCH),
]
CheapestOption = Annotated[
    bool,
    typer.Option(
        "--cheapest", help="Find the kind and the number of GPUs on which the run costs least.", rich_help_panel=_SEARCH
    ),
]
LongestOption = Annotated[
    bool, typer.Option("--longest", help="Find the longest sequence that fits.", rich_help_panel=_SEARCH)
]
LargestModelOption = Annotated[
    bool,
    typer.Option("--largest-model", help="Find the largest model of the catalogue that fits.", rich_help_panel=_SEARCH),
]
DeadlineOption = Annotated[
    _Text, typer.Option("--deadline", metavar="TIME", help="Time to train --tokens in, such as 48h or 3d.")
]
PriceFileOption = Annotated[
    _Text,
    typer.Option(
        "--price-file", metavar="FILE", help="Prices of your own for --cheapest (YAML).", rich_help_panel=_SEARCH
    ),
]
WriteOption = Annotated[
    _Text,
    typer.Option(
        "--write", metavar="FILE", help="Write the settings that are found as a run spec.", rich_help_panel=_SEARCH
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
    _Text,
    typer.Option(
        "--calibration",
        metavar="FILE",
        help="The file of calibrations. Default: your own, which `harness calibrate` writes and a plan reads.",
    ),
]
PlotOption = Annotated[
    _Text, typer.Option("--plot", metavar="FILE", help="Write a chart of memory by alternative as SVG.")
]
LongOption = Annotated[
    bool,
    typer.Option("--long", help="Print every table: memory by row, parts of the step, tuned defaults, alternatives."),
]
