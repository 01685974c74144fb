# SPDX-License-Identifier: Apache-2.0
"""`--format`: the output formats of commands."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class OutputFormat(StrEnum):
    """Output formats of a result."""

    text = "text"
    json = "json"


class FindingsFormat(StrEnum):
    """Output formats of findings."""

    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"


FormatOption = Annotated[OutputFormat, typer.Option("--format", help="Output format.")]
FindingsFormatOption = Annotated[FindingsFormat, typer.Option("--format", help="Output format.")]
