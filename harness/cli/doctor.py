"""`harness doctor`: what this machine has, what that makes possible, and how to mend what is missing."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import exit_with
from harness.errors import Exit, Refused
from harness.findings import Finding, Fix
from harness.launching import measuring
from harness.launching.checkup import examine
from harness.views import doctor as view
from harness.views.style import style_for


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


def doctor(
    format: Annotated[Format, typer.Option("--format", help="How the rows are printed.")] = Format.text,
    measure: Annotated[bool, typer.Option("--measure", help="Also measure how fast it is; minutes.")] = False,
    disk: Annotated[
        str | None, typer.Option("--disk", metavar="FOLDER", help="With --measure: a folder on the disk to measure.")
    ] = None,
) -> None:
    """Look at this machine: versions, compilers, accelerators, memory, left-overs. Imports neither torch nor DeepSpeed.

    `--measure` starts a program that does: host memory, CPU Adam, the disk by DeepSpeed's aio, GPU copies and products.

    Exit codes: 0 training can start here, 1 something that every training needs is missing.

    Example: harness doctor --format json
    """
    folder = _folder(disk)
    rows, found = examine(), {}
    if measure:
        found = measuring.measure(folder)
        rows = (*rows, *measuring.rows_of(found))
    section = measuring.cluster_section(found)
    if format is Format.json:
        print(view.as_json(rows, measured=found, cluster=section))
    else:
        print(view.text(rows, style_for(sys.stdout), section))
    exit_with(Exit.FINDINGS if any(row.state == "missing" for row in rows) else Exit.OK)


def _folder(disk: str | None) -> Path | None:
    if disk is None:
        return None
    if Path(disk).is_dir():
        return Path(disk)
    message = f"`--disk {disk}` is not a folder"
    raise Refused([Finding("MM007", "error", message, fix=Fix("name a folder on the disk to measure"))], Exit.USAGE)
