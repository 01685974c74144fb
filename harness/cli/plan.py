"""`harness plan`: memory, time and alternatives of a run, before anything is started."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import (
    HostfileOption,
    SetOption,
    SpecArgument,
    WorldSizeOption,
    check_file,
    print_findings,
    stop_on_errors,
)
from harness.findings import Finding, in_reading_order
from harness.plan.plan import make_plan
from harness.plan.run import Run
from harness.spec.source import Source
from harness.views.plan import as_text
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


def plan(
    spec: SpecArgument,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    format: Annotated[Format, typer.Option("--format", help="How the plan is printed.")] = Format.text,
) -> None:
    """Count memory and time of a run and of its alternatives; starts nothing and asks no host.

    Example: harness plan ds_configs/demo.yaml --world-size 2
    """
    checked = check_file(spec, overrides=overrides, hostfile=hostfile, world_size=world_size)
    run = stop_on_errors(checked, "Nothing was planned")
    made = make_plan(run, Path.cwd())  # where ranks look for a relative `model.name_or_path` too
    found = _placed(made.findings, checked.source)
    if found:
        print_findings(found, checked.source)
    if format is Format.json:
        print(json.dumps(made.to_json(), indent=2))
        return
    width = shutil.get_terminal_size((110, 24)).columns
    command = _next_command(run, spec, hostfile, overrides)
    print(as_text(made, [*checked.report.findings, *found], command, style_for(sys.stdout), width))


def _placed(findings: Sequence[Finding], source: Source | None) -> tuple[Finding, ...]:
    """The plan's findings with the place of their key, so that they point at what the user can edit."""
    if source is None:
        return tuple(findings)
    return in_reading_order(replace(f, place=source.place(f.key)) if f.key else f for f in findings)


def _next_command(run: Run, spec: str, hostfile: str | None, overrides: Sequence[str] | None) -> str:
    if run.kind != "spec":
        return ""
    words = ["harness", "launch", spec]
    for override in overrides or ():
        words += ["--set", override]
    if hostfile:
        words += ["--hostfile", hostfile]
    elif run.cluster is None and run.degrees.world != run.spec.launch.num_gpus:
        words += ["--set", f"launch.num_gpus={run.degrees.world}"]
    return shlex.join([*words, "--dry-run"])
