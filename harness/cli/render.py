# SPDX-License-Identifier: Apache-2.0
"""`harness render`: the DeepSpeed JSON of a run spec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.check.check_file import check_file
from harness.cli.accelerate_files import check_accelerate_options, write_accelerate_files
from harness.cli.console import exit_with, print_errors, print_findings, write_output
from harness.cli.options import HostfileOption, SetOption, WorldSizeOption
from harness.errors import ExitCode
from harness.findings import Finding, Fix
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import DSConfig, render_ds_config
from harness.render.compare_file import compare_with_file
from harness.views import ds_config as view

NO_ARGS_IS_HELP = True


def render(
    specs: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC...", help="A run spec (YAML); several with --check or --write.", show_default=False
        ),
    ],
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the JSON next to each spec; exit 1 if one differs.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the JSON next to each spec.")] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write this JSON file; with --check, compare with it."),
    ] = None,
    accelerate: Annotated[
        str | None,
        typer.Option(
            "--accelerate",
            metavar="FILE",
            help="Write this YAML for `accelerate launch` and a script of your own, and its JSON beside it.",
        ),
    ] = None,
    reasons: Annotated[bool, typer.Option("--reasons", help="Print each key with the reason for its value.")] = False,
) -> None:
    """Print the DeepSpeed JSON of a run spec, or compare checked-in JSONs with their specs.

    Example: harness render ds_configs/demo.yaml --check
    """
    for spec in specs:
        _check_output_options(spec, output, check=check, write=write, reasons=reasons, is_alone=len(specs) == 1)
    if accelerate is not None:
        check_accelerate_options(specs, accelerate, output, others=check or write or reasons)
    codes = []
    for spec in specs:
        checked = check_file(spec, overrides=overrides, hostfile=hostfile, world_size=world_size, allow_code=True)
        run = print_errors(checked, "Nothing was rendered")
        if run is None:
            codes.append(checked.code)
            continue
        config = render_ds_config(with_tuned_defaults(run, Path.cwd()))
        target = _target_of(spec, output)
        if accelerate is not None:
            codes.append(write_accelerate_files(run, config, Path(accelerate), output))
        elif check:
            codes.append(_print_comparison(config, target, spec))
        elif write or output:
            codes.append(write_output(target, config.json_text))
        else:
            print(view.render_reasons(config) if reasons else config.json_text, end="\n" if reasons else "")
    exit_with(max(codes, default=ExitCode.OK))


def _target_of(spec: str, output: str | None) -> Path:
    return Path(output) if output else Path(spec).with_suffix(".json")


def _check_output_options(
    spec: str, output: str | None, *, check: bool, write: bool, reasons: bool, is_alone: bool
) -> None:
    """Never overwrite the spec itself; standard input has no file next to it; several specs need one file each."""
    finding = None
    if check and write:
        finding = Finding("SP011", "error", "`--check` and `--write` exclude each other", fix=Fix("give one of them"))
    elif reasons and (check or write or output):
        message = "`--reasons` prints, and `--check`, `--write` and `--output` do something else"
        finding = Finding("SP011", "error", message, fix=Fix("give `--reasons` in a call of its own"))
    elif write and output:
        message = f"`--write` writes next to the spec, and `--output {output}` elsewhere"
        finding = Finding("SP011", "error", message, fix=Fix("give one of them"))
    elif not is_alone and (output or not (check or write)):
        message = (
            "several specs have no single JSON" if output else "several specs would print several JSONs in one stream"
        )
        finding = Finding("SP011", "error", message, fix=Fix("add `--check` or `--write`, without `--output`"))
    elif spec == "-" and (check or write) and output is None:
        finding = Finding(
            "RN003", "error", "standard input has no JSON next to it", fix=Fix("name one with `--output`")
        )
    elif spec != "-" and (check or write or output) and _target_of(spec, output).resolve() == Path(spec).resolve():
        fix = Fix("name another file with `--output`")
        message = f"`{_target_of(spec, output)}` is the spec itself, which stays as it is"
        finding = Finding("RN003", "error", message, fix=fix)
    if finding is not None:
        print_findings([finding], None)
        exit_with(ExitCode.USAGE)


def _print_comparison(config: DSConfig, file: Path, spec: str) -> ExitCode:
    text, finding = compare_with_file(config, file, spec)
    if finding is None:
        print(f"OK. {file} is what {spec} renders to.")
        return ExitCode.OK
    print_findings([finding], None)
    if text is not None and (diff := view.render_config_diff(text, config.json_text, str(file))):
        print(diff)
    return ExitCode.FINDINGS
