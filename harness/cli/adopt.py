# SPDX-License-Identifier: Apache-2.0
"""`harness adopt`: a run spec of a configuration that somebody has already."""

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
    """Print a run spec in YAML that says the same; what it cannot say is listed on stderr and in comments.

    Exit codes: 0 fine, 1 the file has errors that must be mended first, 2 it cannot be read.

    Example: harness adopt ds_config.json > spec.yaml
    """
    from harness.convert.conversion import convert_file
    from harness.views.adopt import render_conversion_notes

    target = parse_target(deepspeed_version)
    try:
        adopted = convert_file(file, target)
    except UserError as refused:
        print_findings(refused.findings, getattr(refused, "lines_of", None))
        print("Nothing was adopted.", file=sys.stderr)
        exit_with(refused.code)
    print(adopted.text, end="")
    print(render_conversion_notes(adopted, file), file=sys.stderr)
