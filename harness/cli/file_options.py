# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that check files, for typer. Nothing here looks at a value."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class ConsumerName(StrEnum):
    """Readers of a DeepSpeed JSON."""

    hf = "hf"
    accelerate = "accelerate"
    deepspeed = "deepspeed"


FilesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...", help="Run specs, DeepSpeed JSONs, or folders that hold some; `-` is standard input."
    ),
]
ConsumerOption = Annotated[
    ConsumerName | None,
    typer.Option(
        "--consumer", help='The program that reads the DeepSpeed JSON and fills its "auto" values. Default: guessed.'
    ),
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")]
