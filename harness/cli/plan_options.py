# SPDX-License-Identifier: Apache-2.0
"""Options of `harness plan` alone, for typer. Nothing here looks at a value."""

from __future__ import annotations

from typing import Annotated

import typer

_Text = str | None
_Number = int | None
OptionalSpec = Annotated[_Text, typer.Argument(metavar="[SPEC]", help="A run spec (YAML).", show_default=False)]
ModelOption = Annotated[
    _Text, typer.Option("--model", metavar="NAME", help="Without a spec: a model of the catalogue, or a folder.")
]
ParamsOption = Annotated[
    _Text, typer.Option("--params", metavar="COUNT", help="Without a model: a bare count of parameters, such as 70e9.")
]
GpusOption = Annotated[_Number, typer.Option("--gpus", metavar="N", help="Without a spec: number of GPUs.")]
GpuOption = Annotated[
    _Text, typer.Option("--gpu", metavar="KIND", help="Without a spec: kind of GPU, such as H100-80GB.")
]
GpusPerNodeOption = Annotated[
    _Number, typer.Option("--gpus-per-node", metavar="N", help="Without a spec: GPUs per host. Default: 8.")
]
HostMemoryOption = Annotated[
    _Text, typer.Option("--host-memory", metavar="SIZE", help="Without a spec: memory per host, such as 2TB.")
]
NvmeOption = Annotated[
    _Text, typer.Option("--nvme", metavar="SIZE", help="Without a spec: local disks per host, such as 8x3.5TB.")
]
ZeroStageOption = Annotated[
    _Number, typer.Option("--zero-stage", metavar="0-3", help="Without a spec: ZeRO stage. Default: the fastest.")
]
MaxLengthOption = Annotated[
    int, typer.Option("--max-length", metavar="N", help="Without a spec: tokens per sequence.", show_default=True)
]
BatchTokensOption = Annotated[
    str, typer.Option("--batch-tokens", metavar="COUNT", help="Without a spec: tokens per step.", show_default=True)
]
TokensOption = Annotated[
    _Text, typer.Option("--tokens", metavar="COUNT", help="Tokens of the whole run, to estimate hours and cost.")
]
PriceOption = Annotated[float | None, typer.Option("--price", metavar="X", help="Price of a GPU hour, for the cost.")]
SearchOption = Annotated[bool, typer.Option("--search", help="Find the fastest settings that fit and pass the gates.")]
MinGpusOption = Annotated[
    bool, typer.Option("--min-gpus", help="Find the smallest number of GPUs on which the run fits.")
]
WriteOption = Annotated[
    _Text, typer.Option("--write", metavar="FILE", help="Write the settings of --search as a run spec.")
]
PlotOption = Annotated[
    _Text, typer.Option("--plot", metavar="FILE", help="Write a chart of memory by alternative as SVG.")
]
