# SPDX-License-Identifier: Apache-2.0
"""`harness render`: the DeepSpeed JSON of a run spec."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.check.check_file import check_file
from harness.cli.console import exit_on_errors, exit_with, print_findings
from harness.cli.options import HostfileOption, SetOption, SpecArgument, WorldSizeOption
from harness.errors import ExitCode
from harness.file_io import write_atomically
from harness.findings import Finding, Fix
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import DSConfig, render_ds_config
from harness.render.compare_file import compare_with_file
from harness.views import ds_config as view

NO_ARGS_IS_HELP = True


def render(
    spec: SpecArgument,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the JSON next to the spec; exit 1 if it differs.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the JSON next to the spec.")] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write this JSON file; with --check, compare with it.",
        ),
    ] = None,
    reasons: Annotated[bool, typer.Option("--reasons", help="Print each key with the reason for its value.")] = False,
) -> None:
    """Print the DeepSpeed JSON of a run spec, or compare a checked-in JSON with it.

    Example: harness render ds_configs/demo.yaml --check
    """
    run = exit_on_errors(
        check_file(spec, overrides=overrides, hostfile=hostfile, world_size=world_size, allow_code=True),
        "Nothing was rendered",
    )
    config = render_ds_config(with_tuned_defaults(run, Path.cwd()))
    target = Path(output) if output else Path(spec).with_suffix(".json")
    if check or write or output:
        _check_output_options(spec, target, both=check and write, named=output is not None)
    if check:
        _print_comparison(config, target, spec)
    elif write or output:
        _write_config(config, target)
    elif reasons:
        print(view.render_reasons(config))
    else:
        print(config.json_text, end="")


def _check_output_options(spec: str, target: Path, *, both: bool, named: bool) -> None:
    """Never overwrite the spec itself; standard input has no file next to it."""
    finding = None
    if both:
        finding = Finding("SP011", "error", "`--check` and `--write` exclude each other", fix=Fix("give one of them"))
    elif spec == "-" and not named:
        finding = Finding(
            "RN003", "error", "standard input has no JSON next to it", fix=Fix("name one with `--output`")
        )
    elif spec != "-" and target.resolve() == Path(spec).resolve():
        fix = Fix("name another file with `--output`")
        finding = Finding("RN003", "error", f"`{target}` is the spec itself, which stays as it is", fix=fix)
    if finding is not None:
        print_findings([finding], None)
        exit_with(ExitCode.USAGE)


def _print_comparison(config: DSConfig, file: Path, spec: str) -> None:
    text, finding = compare_with_file(config, file, spec)
    if finding is None:
        print(f"OK. {file} is what {spec} renders to.")
        return
    print_findings([finding], None)
    if text is not None and (diff := view.render_config_diff(text, config.json_text, str(file))):
        print(diff)
    exit_with(ExitCode.FINDINGS)


def _write_config(config: DSConfig, file: Path) -> None:
    try:
        write_atomically(file, config.json_text)
    except OSError as error:
        message = f"`{file}` cannot be written: {(error.strerror or str(error)).lower()}"
        fix = Fix("choose another file with `--output`")
        print_findings([Finding("RN003", "error", message, fix=fix)], None)
        exit_with(ExitCode.USAGE)
    print(f"Wrote {file}.", file=sys.stderr)
