"""`harness validate-config`: is this run spec, or this DeepSpeed JSON, going to train what it says?"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from harness.cli.common import (
    Checked,
    HostfileOption,
    SetOption,
    VersionOption,
    WorldSizeOption,
    check_file,
    exit_with,
    parse_target,
)
from harness.views import text
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"


def validate_config(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Run specs or DeepSpeed JSONs; `-` is standard input.")
    ],
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    deepspeed_version: VersionOption = None,
    format: Annotated[Format, typer.Option("--format", help="How findings are printed.")] = Format.text,
) -> None:
    """Check run specs and DeepSpeed JSONs without importing torch or DeepSpeed.

    Exit codes: 0 fine (warnings allowed), 1 errors found, 2 wrong usage or an unreadable file.

    Example: harness validate-config ds_configs/demo.yaml --world-size 2
    """
    deepspeed = parse_target(deepspeed_version)
    checked = [
        check_file(file, overrides=overrides, hostfile=hostfile, world_size=world_size, deepspeed=deepspeed)
        for file in files
    ]
    if format is Format.text:
        _print_text(checked, f" against DeepSpeed {deepspeed.text} ({deepspeed.origin})")
    else:
        from harness.views.machine_readable import FORMATS

        output = FORMATS[format.value]([c.report for c in checked], deepspeed.text)
        if output:
            print(output)
    exit_with(max(c.code for c in checked))


def _print_text(checked: list[Checked], against: str) -> None:
    style = style_for(sys.stdout)
    for item in checked:
        if item.report.findings:
            print(text.findings(item.report.findings, item.source, style))
    print(text.summary([c.report for c in checked], style, against=against))
