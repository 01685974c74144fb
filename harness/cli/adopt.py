# SPDX-License-Identifier: Apache-2.0
"""`harness adopt`: convert a configuration of another program to a run spec."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import exit_with, print_findings, write_output
from harness.cli.options import VersionOption, WorldSizeOption, refuse_unread
from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import parse_target
from harness.findings import Finding, Fix

NO_ARGS_IS_HELP = True
_OTHER_METHODS = ("MD047",)
"""Gates of what a program trains and a run cannot: 4-bit weights of experts. Such a file is not converted."""


def adopt(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A DeepSpeed JSON; a YAML of accelerate, axolotl, LLaMA-Factory, ArcticTraining, TRL or ms-swift; or "
            "a script with `swift sft`, `llamafactory-cli train`, `trl sft`, `axolotl train`, OpenRLHF, Megatron-"
            "DeepSpeed, or a launcher and a script of one's own.",
        ),
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="SPEC", help="Write the run spec to this file.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare the DeepSpeed JSON that FILE names with the rendered one, key by key, instead of printing "
            "the spec; exit 1 for a difference without a reason.",
        ),
    ] = False,
    from_release: Annotated[
        str | None,
        typer.Option(
            "--from-release",
            metavar="V",
            help="Release of FILE's program, for its defaults. Default: the newest that the harness knows.",
        ),
    ] = None,
    deepspeed_version: VersionOption = None,
    world_size: WorldSizeOption = None,
) -> None:
    """Convert a configuration of another program to a run spec in YAML, on stdout or in a file.

    Keys that cannot be converted as they are go into three lists, on stderr and in comments: to be set by hand, trained
    differently, without effect. The spec gets the program's defaults where those of a run spec differ.

    Exit codes: 0 converted, 1 the file has errors to fix first, or a difference has no reason, 2 a file cannot be read
    or written.

    Example: harness adopt ds_config.json -o spec.yaml
    """
    from harness.check.check_file import check_file
    from harness.convert.conversion import convert_file
    from harness.views.adopt import render_comparison, render_conversion_notes, render_errors_of_spec

    if not verify:
        refuse_unread("needs `--verify`: a run spec has no number of ranks", {"--world-size": world_size})
    target = parse_target(deepspeed_version)
    try:
        _check_output(file, output)
        adopted = convert_file(file, target, release=from_release)
    except UserError as refused:
        print_findings(refused.findings, getattr(refused, "lines_of", None))
        print("Nothing was converted.", file=sys.stderr)
        exit_with(refused.code)
    checked = check_file(output or "spec.yaml", text=adopted.text, deepspeed=target, world_size=world_size)
    errors = [error for error in checked.report.errors if error.gate != "SP053"]  # the placeholders are named above
    other_methods = [error for error in errors if error.gate in _OTHER_METHODS]
    if other_methods:
        print_findings(other_methods, checked.lines_of)
        print("Nothing was converted.", file=sys.stderr)
        exit_with(ExitCode.FINDINGS)
    texts = {Path(output).parent / name: text for name, text in adopted.draft.files.items()} if output else {}
    if output is not None:
        code = next(
            filter(None, (write_output(*file) for file in ((Path(output), adopted.text), *texts.items()))), None
        )
        if code is not None:
            exit_with(code)
    elif not verify:
        print(adopted.text, end="")
    print(render_conversion_notes(adopted, file), file=sys.stderr)
    if errors:
        print(render_errors_of_spec(errors, output), file=sys.stderr)
    if verify:
        from harness.check.config_comparison import compare_configs

        comparison = compare_configs(adopted, target, world_size)
        print(render_comparison(comparison, file))
        if comparison.unexplained or not comparison.name:
            exit_with(ExitCode.FINDINGS)


def _check_output(file: str, output: str | None) -> None:
    """Never overwrite the file itself."""
    if output is not None and file != "-" and Path(output).resolve() == Path(file).resolve():
        fix = Fix("name another file with `--output`")
        finding = Finding("RN003", "error", f"`{output}` is the file itself, which stays as it is", fix=fix)
        raise UserError([finding], ExitCode.USAGE)
