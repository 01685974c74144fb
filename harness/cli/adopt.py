# SPDX-License-Identifier: Apache-2.0
"""`harness adopt`: convert a configuration of another program to a run spec."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from harness.check.deepspeed_release import parse_target
from harness.cli.console import exit_with, print_findings
from harness.cli.options import VersionOption
from harness.errors import UserError

NO_ARGS_IS_HELP = True


def adopt(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A DeepSpeed JSON, or the YAML of accelerate, axolotl or LLaMA-Factory."),
    ],
    deepspeed_version: VersionOption = None,
) -> None:
    """Convert a configuration of another program to a run spec in YAML, on stdout.

    Keys that have no place in a run spec are listed on stderr and in comments.

    Exit codes: 0 converted, 1 the file has errors to fix first, 2 it cannot be read.

    Example: harness adopt ds_config.json > spec.yaml
    """
    from harness.convert.conversion import convert_file
    from harness.views.adopt import render_conversion_notes

    target = parse_target(deepspeed_version)
    try:
        adopted = convert_file(file, target)
    except UserError as refused:
        print_findings(refused.findings, getattr(refused, "lines_of", None))
        print("Nothing was converted.", file=sys.stderr)
        exit_with(refused.code)
    print(adopted.text, end="")
    print(render_conversion_notes(adopted, file), file=sys.stderr)
