# SPDX-License-Identifier: Apache-2.0
"""`harness checkpoint`: list, verify, show, compare, move and remove the checkpoints of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.checkpoints import removal
from harness.checkpoints.checkpoint_list import find_checkpoints_folder, find_manifest, read_rows
from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.store_commands import download_to, upload_folder
from harness.cli import foreign_checkpoints as foreign
from harness.cli.checkpoint_usage import check_count, check_options
from harness.cli.checkpoint_verification import verify_checkpoints
from harness.cli.completion import complete_run
from harness.cli.console import exit_with
from harness.cli.foreign_checkpoints import print_inspection
from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode
from harness.object_stores.store_url import is_store_url
from harness.run_records.run_list import resolve_run_path
from harness.views import checkpoint as view
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


class Action(StrEnum):
    """Actions on checkpoints."""

    ls = "ls"
    verify = "verify"
    show = "show"
    diff = "diff"
    rm = "rm"
    upload = "upload"
    download = "download"
    inspect = "inspect"
    import_ = "import"
    convert = "convert"


def checkpoint(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help=f"{', '.join(Action)}.")],
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT",
            help="A run directory, its name below `runs`, `latest`, or a checkpoint; two for diff; of any program for "
            "inspect. upload: that or an export, and the URL of a prefix; download: a URL, and a folder. import: one "
            "of another program, and the run directory to make; convert: a run or checkpoint, and the folder to make.",
            autocompletion=complete_run,
        ),
    ],
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.text,
    quick: Annotated[bool, typer.Option("--quick", help="verify: check names and sizes only, not every byte.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="rm: do not ask for confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="rm: remove even the only complete checkpoint.")] = False,
    spec: foreign.SpecOption = None,
    drop_optimizer_states: foreign.DropOption = False,
    partial: foreign.PartialOption = False,
    to: foreign.ToOption = None,
) -> None:
    """List, verify, show, compare, move and remove checkpoints, without unpickling or running anything in them.

    In a run directory `ls` and `verify` take all checkpoints, the other actions the newest complete one. `inspect`
    tells what a checkpoint of DeepSpeed, the Trainer, accelerate, peft and others is, and whether it is whole; `import`
    makes a run of it that goes on at the next step, and `convert` is the way back.

    Exit codes: 0 fine, 1 a checkpoint is damaged, 2 no such checkpoint.

    Example: harness checkpoint verify latest
    """
    check_count(action.value, paths)
    options = {"--quick": quick, "--yes": yes, "--force": force, "--format": format is not OutputFormat.text}
    options |= {
        "--spec": bool(spec),
        "--drop-optimizer-states": drop_optimizer_states,
        "--partial": partial,
        "--to": bool(to),
    }
    check_options(action.value, {**options, "--to": bool(to)})
    as_written = action in (Action.download, Action.inspect, Action.import_)
    folders = [Path(p) if is_store_url(p) or as_written else resolve_run_path(p) for p in paths]
    actions: dict[Action, Callable[[], ExitCode]] = {
        Action.ls: lambda: _list_checkpoints(folders[0], format),
        Action.verify: lambda: verify_checkpoints(folders, format, deep=not quick),
        Action.show: lambda: _show_manifest(folders[0], format),
        Action.diff: lambda: _diff_manifests(folders[0], folders[1], format),
        Action.upload: lambda: _print_line(f"uploaded to {upload_folder(folders[0], paths[1])}"),
        Action.download: lambda: _print_line(f"downloaded to {download_to(paths[0], Path(paths[1]))}"),
        Action.inspect: lambda: print_inspection(folders[0], format),
        Action.import_: lambda: foreign.import_folder(
            folders[0], folders[1], spec, drop_optimizer_states=drop_optimizer_states, partial=partial
        ),
        Action.convert: lambda: foreign.convert_run(folders[0], Path(paths[1]), to),
        Action.rm: lambda: _remove_checkpoints(folders, yes=yes, force=force),
    }
    exit_with(actions[action]())


def _print_line(text: str) -> ExitCode:
    print(text)
    return ExitCode.OK


def _list_checkpoints(path: Path, format: OutputFormat) -> ExitCode:
    folder = find_checkpoints_folder(path)
    rows, evaluations = read_rows(folder), Evaluations.read(folder)
    if format is OutputFormat.json:
        return _print_line(view.checkpoints_as_json(folder, rows, evaluations))
    return _print_line(view.render_checkpoints(folder, rows, evaluations, style_for(sys.stdout)))


def _show_manifest(path: Path, format: OutputFormat) -> ExitCode:
    manifest = find_manifest(path)
    if format is OutputFormat.json:
        return _print_line(json.dumps(manifest.body, indent=2))
    return _print_line(view.render_manifest(manifest, style_for(sys.stdout)))


def _diff_manifests(first: Path, second: Path, format: OutputFormat) -> ExitCode:
    one, other = find_manifest(first), find_manifest(second)
    if format is OutputFormat.json:
        return _print_line(view.manifest_diff_as_json(one, other))
    return _print_line(view.render_manifest_diff(one, other, style_for(sys.stdout)))


def _remove_checkpoints(paths: list[Path], *, yes: bool, force: bool) -> ExitCode:
    for path in (finished := removal.finish_killed_removals(paths)):
        print(f"removed the rest of {path}, whose removal had been killed")
    paths = [path for path in paths if path not in finished]
    removal.require_checkpoints(paths)
    for path in paths:
        if not force:
            removal.require_another_complete(path)
        if not yes and not typer.confirm(f"Remove {path}?", err=True):
            print("Nothing was removed." if path == paths[0] else "Nothing more was removed.", file=sys.stderr)
            return ExitCode.OK
        removal.remove_and_update_latest(path)
        print(f"removed {path}")
    return ExitCode.OK
