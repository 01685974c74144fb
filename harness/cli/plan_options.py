# SPDX-License-Identifier: Apache-2.0
"""Options of `harness plan` alone, for typer. Nothing here looks at a value."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from harness.cli.options import option_of


class Trainer(StrEnum):
    """The keys of `plan.trainer_loop.TRAINERS`."""

    trainer = "trainer"
    llama_factory = "llama-factory"
    axolotl = "axolotl"
    swift = "swift"
    accelerate = "accelerate"


_model_option, _search_option = option_of("Model and GPUs"), option_of("Search")
_Text = str | None
_Number = int | None
OptionalSpec = Annotated[_Text, typer.Argument(metavar="[SPEC]", help="A run spec (YAML).", show_default=False)]
ModelOption = Annotated[_Text, _model_option("--model", metavar="NAME", help="A known name, a folder, or OWNER/NAME.")]
OfflineOption = Annotated[bool, _model_option("--offline", help="Fetch no config.json of OWNER/NAME from the Hub.")]
ParamsOption = Annotated[
    _Text,
    _model_option("--params", metavar="COUNT", help="Instead of a model: a bare count of parameters, such as 70e9."),
]
GpusOption = Annotated[_Number, _model_option("--gpus", metavar="N", help="Number of GPUs.")]
GpuOption = Annotated[_Text, _model_option("--gpu", metavar="KIND", help="Kind of GPU, such as H100-80GB.")]
GpusPerNodeOption = Annotated[
    _Number,
    _model_option("--gpus-per-node", metavar="N", help="GPUs per host. Default: as the kind is built, mostly 8."),
]
HostMemoryOption = Annotated[
    _Text, _model_option("--host-memory", metavar="SIZE", help="Memory per host, such as 2TB.")
]
NvmeOption = Annotated[_Text, _model_option("--nvme", metavar="SIZE", help="Local disks per host, such as 8x3.5TB.")]
ZeroStageOption = Annotated[
    _Number, _model_option("--zero-stage", metavar="0-3", help="ZeRO stage. Default: the fastest.")
]
MaxLengthOption = Annotated[
    _Number,
    _model_option("--max-length", metavar="N", help="Tokens per sequence. Default: 4096, or the model's positions."),
]
BatchTokensOption = Annotated[
    _Text, _model_option("--batch-tokens", metavar="COUNT", help="Tokens per step. Default: 1048576.")
]
TokensOption = Annotated[
    _Text, typer.Option("--tokens", metavar="COUNT", help="Tokens of the whole run, to estimate hours and cost.")
]
EpochsOption = Annotated[
    float | None, typer.Option("--epochs", metavar="N", help="Times that --tokens are trained. Default: once.")
]
PriceOption = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="X", help="Price of a GPU hour, for the cost; KIND=X, repeatable, for --cheapest."),
]
TrainerOption = Annotated[
    Trainer | None,
    typer.Option("--as", help="Plan the loop of this trainer instead of that of `harness launch`.", show_default=False),
]
LoraOption = Annotated[bool, _model_option("--lora", help="Train adapters of rank 16 at all linear layers (LoRA).")]
QloraOption = Annotated[bool, _model_option("--qlora", help="The same over frozen weights in 4 bits (QLoRA).")]
SearchOption = Annotated[
    bool, _search_option("--search", help="Find the fastest settings that fit and pass the gates.")
]
MinGpusOption = Annotated[
    bool, _search_option("--min-gpus", help="Find the smallest number of GPUs on which the run fits.")
]
CheapestOption = Annotated[
    bool, _search_option("--cheapest", help="Find the kind and the number of GPUs on which the run costs least.")
]
LongestOption = Annotated[bool, _search_option("--longest", help="Find the longest sequence that fits.")]
LargestModelOption = Annotated[
    bool, _search_option("--largest-model", help="Find the largest model of the catalogue that fits.")
]
DeadlineOption = Annotated[
    _Text, typer.Option("--deadline", metavar="TIME", help="Time to train --tokens in, such as 48h or 3d.")
]
MeasuredOption = Annotated[
    _Text, typer.Option("--measured", metavar="RATE", help="Tokens a second that a run of yours has, for its MFU.")
]
PriceFileOption = Annotated[
    _Text, _search_option("--price-file", metavar="FILE", help="Prices of your own for --cheapest (YAML).")
]
WriteOption = Annotated[
    _Text, _search_option("--write", metavar="FILE", help="Write the settings that are found as a run spec.")
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
