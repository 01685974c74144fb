# SPDX-License-Identifier: Apache-2.0
"""Options of `harness plan` alone, for typer. Nothing here looks at a value."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


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
    typer.Option("--model", metavar="NAME", help="A known name, a folder, or OWNER/NAME.", rich_help_panel=_MODEL),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Fetch no config.json of OWNER/NAME from the Hub.", rich_help_panel=_MODEL)
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
    _Number,
    typer.Option(
        "--gpus-per-node",
        metavar="N",
        help="GPUs per host. Default: as the kind is built, mostly 8.",
        rich_help_panel=_MODEL,
    ),
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
LoraOption = Annotated[
    bool,
    typer.Option("--lora", help="Train adapters of rank 16 at all linear layers (LoRA).", rich_help_panel=_MODEL),
]
QloraOption = Annotated[
    bool, typer.Option("--qlora", help="The same over frozen weights in 4 bits (QLoRA).", rich_help_panel=_MODEL)
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
MeasuredOption = Annotated[
    _Text, typer.Option("--measured", metavar="RATE", help="Tokens a second that a run of yours has, for its MFU.")
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
PlotOption = Annotated[
    _Text, typer.Option("--plot", metavar="FILE", help="Write a chart of memory by alternative as SVG.")
]
HtmlOption = Annotated[
    _Text, typer.Option("--html", metavar="FILE", help="Write a page: what fits where, memory, the step.")
]
LongOption = Annotated[
    bool,
    typer.Option("--long", help="Print every table: memory by row, parts of the step, tuned defaults, alternatives."),
]
