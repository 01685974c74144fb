# SPDX-License-Identifier: Apache-2.0
"""The files of `harness render --accelerate`."""

from __future__ import annotations

from pathlib import Path

from harness.cli.console import exit_with, print_findings, write_output
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.render import DSConfig
from harness.render.accelerate_launch_config import render_accelerate_config
from harness.run.resolved_run import ResolvedRun


def check_accelerate_options(specs: list[str], file: str, output: str | None, *, others: bool) -> None:
    """One spec, two new files, nothing else to do; ends the command otherwise."""
    message = ""
    if len(specs) > 1 or others:
        message = "`--accelerate` writes the files of one spec, in a call of its own"
    elif Path(file).resolve() in (Path(specs[0]).resolve(), Path(output or "").resolve()):
        message = f"`{file}` is another file of this command, which stays as it is"
    elif Path(file).suffix not in (".yaml", ".yml"):
        message = f"`{file}` is no name of a YAML: `accelerate launch` reads other names as JSON"
    if message:
        fix = Fix("write `harness render SPEC --accelerate FILE.yaml`")
        print_findings([Finding("SP011", "error", message, fix=fix)], None)
        exit_with(ExitCode.USAGE)


def write_accelerate_files(run: ResolvedRun, config: DSConfig, file: Path, output: str | None) -> ExitCode:
    """Write the YAML `file`, and the JSON `output` or beside it."""
    target = Path(output) if output else file.with_suffix(".json")
    try:
        text = render_accelerate_config(run, target, file)
    except UserError as error:
        print_findings(error.findings, None)
        return ExitCode.USAGE
    return max(write_output(target, config.json_text), write_output(file, text))
