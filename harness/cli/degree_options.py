# SPDX-License-Identifier: Apache-2.0
"""Options of `harness plan` for degrees of parallelism and tables of states, for typer. No values are looked at."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from harness.cli.options import option_of

_Text = str | None
_Number = int | None
_degree_option = option_of("Any degrees, as arithmetic")


def _degree(option: str, help_text: str) -> Any:
    return _degree_option(option, metavar="N", help=help_text)


def _word(option: str, metavar: str, help_text: str) -> Any:
    return _degree_option(option, metavar=metavar, help=help_text)


TensorOption = Annotated[_Number, _degree("--tensor", "Tensor-parallel degree.")]
PipelineOption = Annotated[_Number, _degree("--pipeline", "Pipeline stages.")]
ContextOption = Annotated[_Number, _degree("--context", "Context-parallel degree: ranks that share a sequence.")]
ExpertOption = Annotated[_Number, _degree("--expert", "Expert-parallel degree, over the ranks of a stage.")]
VirtualStagesOption = Annotated[_Number, _degree("--virtual-stages", "Chunks of layers on a stage, interleaved.")]
MicroBatchOption = Annotated[_Number, _degree("--micro-batch", "Sequences of a micro-batch. Default: 1.")]
ScheduleOption = Annotated[
    _Text, _word("--schedule", "NAME", "naive, gpipe, 1f1b (default), interleaved, zb-h1 or dualpipe.")
]
PrecisionOption = Annotated[
    _Text, _word("--precision", "NAME", "bf16 (default), fp16 or fp32; `harness degrees` also has fp8.")
]
CheckpointingOption = Annotated[_Text, _word("--checkpointing", "NAME", "none (default), selective or full.")]
StatesOption = Annotated[
    _Text,
    _word("--states", "NAME", "States of Adam in fp32 (default), bf16 or int8; momentum (one in fp32) or none (SGD)."),
]
SequenceParallelOption = Annotated[
    bool | None,
    _degree_option(
        "--sequence-parallel/--no-sequence-parallel",
        help="Divide the sequence over the tensor group, as Megatron does. Default: on.",
    ),
]
TimelineOption = Annotated[_Text, _word("--timeline", "FILE", "Draw the pipeline's schedule as SVG.")]
ScalingOption = Annotated[
    _Text, _word("--scaling", "N,N,...", "The same degrees and batch on each of these numbers of GPUs, a line each.")
]
TableOption = Annotated[
    bool, typer.Option("--table", help="States of 124M to 405B parameters, by precision, ZeRO stage and GPUs.")
]
NonStatePeakOption = Annotated[
    _Text,
    typer.Option(
        "--non-state-peak",
        metavar="SIZE",
        help="A measured peak without the states, such as 22GB; prints on how many GPUs model and states fit.",
    ),
]
NetworkOption = Annotated[
    _Text,
    typer.Option(
        "--network",
        metavar="RATE",
        help="Rate of a host's network in each direction, such as 50GB/s or 400Gb/s; in a spec"
        " `cluster.network_bandwidth`.",
    ),
]
GradientsOption = Annotated[
    _Text,
    typer.Option(
        "--gradients",
        metavar="NAME",
        help="Format in which gradients are reduced, bf16, fp16 or fp32: with --params (default: bf16) and degrees"
        " (default: fp32).",
    ),
]
