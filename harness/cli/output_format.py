# SPDX-License-Identifier: Apache-2.0
"""`--format`: in what form a command prints its result."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class OutputFormat(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


class FindingsFormat(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"


FormatOption = Annotated[OutputFormat, typer.Option("--format", help="How the result is printed.")]
FindingsFormatOption = Annotated[FindingsFormat, typer.Option("--format", help="How findings are printed.")]
