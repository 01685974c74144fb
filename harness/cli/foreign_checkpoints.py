# SPDX-License-Identifier: Apache-2.0
"""`harness checkpoint inspect`, `import` and `convert`: checkpoints of other programs, and the way back."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.checkpoints.foreign.folder_reader import inspect_folder
from harness.checkpoints.foreign.inspection import lines_of
from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix


class Target(StrEnum):
    """Programs that a checkpoint is converted for."""

    deepspeed = "deepspeed"
    universal = "universal"
    trainer = "trainer"


SpecOption = Annotated[
    str | None,
    typer.Option(
        "--spec",
        metavar="SPEC",
        help="import: the run spec that goes on. Default: one is written from what the checkpoint says.",
    ),
]
DropOption = Annotated[
    bool, typer.Option("--drop-optimizer-states", help="import: take the weights; the optimizer starts anew.")
]
PartialOption = Annotated[
    bool, typer.Option("--partial", help="import: of a damaged save, write the tensors that are left, by name.")
]
ToOption = Annotated[
    Target | None, typer.Option("--to", help=f"convert: the program that goes on, {', '.join(Target)}.")
]


def import_folder(folder: Path, run: Path, spec: str | None, *, drop_optimizer_states: bool, partial: bool) -> ExitCode:
    """Import a checkpoint into the new run directory `run`. Raises UserError."""
    from harness.launching.programs.checkpoint_import import import_checkpoint, import_partial
    from harness.spec.parse.source import read_text
    from harness.views.adopt import render_conversion_notes

    ignored = "--spec" if spec is not None else "--drop-optimizer-states" if drop_optimizer_states else None
    if partial and ignored is not None:
        message = f"`{ignored}` has no meaning beside `--partial`, which writes tensors by name and no run"
        raise UserError([Finding("SP011", "error", message, fix=Fix("leave one of them out"))], ExitCode.USAGE)
    if spec is not None:
        read_text(spec)  # said before anything is read of the checkpoint
    if partial:
        return ExitCode(import_partial(folder, run, _print_line))
    done = import_checkpoint(folder, run, spec, _print_line, drop_optimizer_states=drop_optimizer_states)
    if done.adopted is not None and done.code == 0:
        print(render_conversion_notes(done.adopted.converted, str(folder)), file=sys.stderr)
    if done.code == 0:
        _print_line(f"go on with: harness launch {done.spec} --resume {run}")
    return ExitCode(done.code)


def convert_run(run: Path, out: Path, to: Target | None) -> ExitCode:
    """Convert the newest checkpoint of a run, or one of its checkpoints. Raises UserError."""
    from harness.launching.programs.checkpoint_import import convert_checkpoint

    if to is None:
        message = "`harness checkpoint convert` needs `--to`"
        fix = Fix("add `--to universal`, `--to trainer` or `--to deepspeed`")
        raise UserError([Finding("SP011", "error", message, fix=fix)], ExitCode.USAGE)
    return ExitCode(convert_checkpoint(run, out, to.value))


def _print_line(text: str) -> None:
    print(text, flush=True)


def print_inspection(folder: Path, format: OutputFormat) -> ExitCode:
    """Print it; FINDINGS where the checkpoint is not whole, or where there is none. Raises UserError."""
    found = inspect_folder(folder)
    print(json.dumps(found.to_json(), indent=2) if format is OutputFormat.json else "\n".join(lines_of(found)))
    return ExitCode.FINDINGS if found.is_whole is False else ExitCode.OK
