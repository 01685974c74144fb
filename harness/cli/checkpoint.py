"""`harness checkpoint`: what checkpoints a run has, whether they are whole, what is in them; and removing one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import (
    LATEST,
    checkpoints_folder,
    describe_stale_latest,
    find_latest,
    list_checkpoints,
    list_complete_manifests,
    step_in_name,
    verify_with_name,
)
from harness.checkpoints.manifest import MANIFEST, Manifest, read_manifest
from harness.checkpoints.retention import remove_checkpoint, update_latest_pointer
from harness.cli.console import exit_with
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.views import checkpoint as view
from harness.views import findings_text as text
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


class OutputFormat(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


class Action(StrEnum):
    """What to do."""

    ls = "ls"
    verify = "verify"
    show = "show"
    diff = "diff"
    rm = "rm"


def checkpoint(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="ls, verify, show, diff or rm.")],
    paths: Annotated[
        list[str], typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run directory or a checkpoint; two for diff.")
    ],
    format: Annotated[OutputFormat, typer.Option("--format", help="How it is printed.")] = OutputFormat.text,
    quick: Annotated[bool, typer.Option("--quick", help="verify: names and sizes alone, not every byte.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="rm: do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="rm: also the only complete one.")] = False,
) -> None:
    """List, verify, show, compare and remove checkpoints. Nothing in them is unpickled or run.

    Of a run directory, `ls` and `verify` look at all checkpoints, the others at the newest that is complete.

    Exit codes: 0 fine, 1 something is damaged, 2 there is no such checkpoint.

    Example: harness checkpoint verify runs/latest
    """
    folders = [Path(p) for p in paths]
    _check_count(action, folders)
    actions: dict[Action, Callable[[], ExitCode]] = {
        Action.ls: lambda: _list_checkpoints(folders[0], format),
        Action.verify: lambda: _verify_checkpoints(folders, format, deep=not quick),
        Action.show: lambda: _show_manifest(folders[0], format),
        Action.diff: lambda: _diff_manifests(folders[0], folders[1], format),
        Action.rm: lambda: _remove_checkpoints(folders, yes=yes, force=force),
    }
    exit_with(actions[action]())


def _check_count(action: Action, folders: list[Path]) -> None:
    wanted = {Action.ls: 1, Action.show: 1, Action.diff: 2}.get(action)
    if wanted is not None and len(folders) != wanted:
        fix = Fix(f"name {wanted}")
        message = f"`harness checkpoint {action.value}` takes {wanted} paths, got {len(folders)}"
        raise UserError([Finding("SP011", "error", message.replace("1 paths", "1 path"), fix=fix)], ExitCode.USAGE)


def _list_checkpoints(path: Path, format: OutputFormat) -> ExitCode:
    folder = _find_checkpoints_folder(path)
    rows = [_read_row(p) for p in list_checkpoints(folder)]
    newest = next((r.manifest.folder.name for r in rows if r.manifest), None)
    if format is OutputFormat.json:
        print(view.checkpoints_as_json(folder, rows, Evaluations.read(folder), newest))
    else:
        print(view.render_checkpoints(folder, rows, Evaluations.read(folder), newest, style_for(sys.stdout)))
    return ExitCode.OK


def _read_row(path: Path) -> view.CheckpointRow:
    try:
        return view.CheckpointRow(path, read_manifest(path), "")
    except UserError as refused:
        return view.CheckpointRow(path, None, refused.findings[0].message)


def _verify_checkpoints(paths: list[Path], format: OutputFormat, *, deep: bool) -> ExitCode:
    """Each checkpoint by itself, and, of a run, whether `latest` names the newest that is whole."""
    results: list[tuple[Path, list[Finding]]] = []
    for path in paths:
        if is_checkpoint(path):
            results.append((path, verify_with_name(path, deep=deep, progress=_progress_printer())))
            continue
        folder = _find_checkpoints_folder(path)
        mine = [(p, verify_with_name(p, deep=deep, progress=_progress_printer())) for p in list_checkpoints(folder)]
        whole = next((p for p, found in mine if not any(f.is_error for f in found)), None)
        stale = describe_stale_latest(folder, whole)
        if stale:
            fix = Fix("nothing, for a resume: it looks for itself; the next save writes it anew")
            mine.append((folder / LATEST, [Finding("CK115", "error", f"`{folder / LATEST}`: {stale}", fix=fix)]))
        results += mine
    if format is OutputFormat.json:
        print(view.verification_as_json(results, deep=deep))
    else:
        _print_findings([f for _, found in results for f in found])
        print(view.render_verification(results, style_for(sys.stdout), deep=deep))
    return ExitCode.FINDINGS if any(f.is_error for _, found in results for f in found) else ExitCode.OK


def _progress_printer() -> Callable[[int, int], None] | None:
    """A line that is written over, on a terminal alone."""
    if not sys.stderr.isatty():
        return None

    def tell(done: int, total: int) -> None:
        print(
            f"\r{view.format_read_progress(done, total)}",
            end="\n" if done >= total else "",
            file=sys.stderr,
            flush=True,
        )

    return tell


def _show_manifest(path: Path, format: OutputFormat) -> ExitCode:
    manifest = _read_manifest(path)
    if format is OutputFormat.json:
        print(json.dumps(manifest.body, indent=2))
    else:
        print(view.render_manifest(manifest, style_for(sys.stdout)))
    return ExitCode.OK


def _diff_manifests(first: Path, second: Path, format: OutputFormat) -> ExitCode:
    one, other = _read_manifest(first), _read_manifest(second)
    print(
        view.manifest_diff_as_json(one, other)
        if format is OutputFormat.json
        else view.render_manifest_diff(one, other, style_for(sys.stdout))
    )
    return ExitCode.OK


def _remove_checkpoints(paths: list[Path], *, yes: bool, force: bool) -> ExitCode:
    for path in paths:
        if step_in_name(path.name) is None or not path.is_dir() or path.is_symlink():
            raise UserError([_no_checkpoint_finding(path, "is not a checkpoint")], ExitCode.USAGE)
    for path in paths:
        left = [m for m in list_complete_manifests(path.parent) if m.folder.name != path.name]
        if not left and not force and (path / MANIFEST).is_file():
            fix = Fix("give `--force` when it is meant")
            raise UserError(
                [Finding("CK114", "error", f"`{path}` is the only complete checkpoint of its run", fix=fix)],
                ExitCode.USAGE,
            )
        if not yes and not typer.confirm(f"Remove {path}?", err=True):
            print("Nothing was removed." if path == paths[0] else "Nothing more was removed.", file=sys.stderr)
            return ExitCode.OK
        try:
            remove_checkpoint(path)
            update_latest_pointer(path.parent)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            fix = Fix("see to it that the folder can be written")
            raise UserError(
                [Finding("CK113", "error", f"`{path}` cannot be removed: {reason}", fix=fix)], ExitCode.USAGE
            ) from None
        print(f"removed {path}")
    return ExitCode.OK


def is_checkpoint(path: Path) -> bool:
    """Is this path meant as one checkpoint, whole or not?"""
    return path.is_dir() and ((path / MANIFEST).exists() or step_in_name(path.name) is not None)


def _find_checkpoints_folder(path: Path) -> Path:
    """The folder of checkpoints of a run. Raises Refused (CK113)."""
    if not path.is_dir():
        raise UserError(
            [_no_checkpoint_finding(path, "is not a folder" if path.exists() else "does not exist")], ExitCode.USAGE
        )
    folder = checkpoints_folder(path)
    if not list_checkpoints(folder):
        raise UserError([_no_checkpoint_finding(path, "has no checkpoint")], ExitCode.USAGE)
    return folder


def _read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint, or of the newest complete one of a run. Raises Refused."""
    if is_checkpoint(path):
        return read_manifest(path)
    newest = find_latest(_find_checkpoints_folder(path), verify="sizes").checkpoint
    if newest is None:
        raise UserError([_no_checkpoint_finding(path, "has no complete checkpoint")], ExitCode.USAGE)
    return read_manifest(newest)


def _no_checkpoint_finding(path: Path, what: str) -> Finding:
    fix = Fix("name a run directory, such as `runs/latest`, or one of its `checkpoints/step-*`")
    return Finding("CK113", "error", f"`{path}` {what}", fix=fix)


def _print_findings(found: list[Finding]) -> None:
    if found:
        print(text.render_findings(found, None, style_for(sys.stderr)), file=sys.stderr)
