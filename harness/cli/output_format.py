# SPDX-License-Identifier: Apache-2.0
"""`--format`: the output formats of commands."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from harness.printed_text import unguarded


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


def print_for_programs(text: str, format: FindingsFormat) -> None:
    """Print findings for a program; in the format of GitHub the lines are workflow commands on purpose."""
    print(text, file=unguarded(sys.stdout) if format is FindingsFormat.github else sys.stdout)


FormatOption = Annotated[OutputFormat, typer.Option("--format", help="Output format.")]
FindingsFormatOption = Annotated[FindingsFormat, typer.Option("--format", help="Output format.")]
