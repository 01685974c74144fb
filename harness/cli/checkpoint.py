"""`harness checkpoint`: what checkpoints a run has, whether they are whole, what is in them; and removing one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.checkpoints.choosing import (
    LATEST,
    checkpoints_folder,
    complete_in,
    named_in,
    newest_complete,
    problems,
    stale_latest,
    step_of,
)
from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.manifest import NAME, Manifest, read
from harness.checkpoints.retention import point_latest, remove
from harness.cli.common import exit_with
from harness.errors import Exit, Refused
from harness.findings import Finding, Fix
from harness.views import checkpoint as view
from harness.views import text
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


class Format(StrEnum):
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
    format: Annotated[Format, typer.Option("--format", help="How it is printed.")] = Format.text,
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
    actions: dict[Action, Callable[[], Exit]] = {
        Action.ls: lambda: _list(folders[0], format),
        Action.verify: lambda: _verify(folders, format, deep=not quick),
        Action.show: lambda: _show(folders[0], format),
        Action.diff: lambda: _diff(folders[0], folders[1], format),
        Action.rm: lambda: _remove(folders, yes=yes, force=force),
    }
    exit_with(actions[action]())


def _check_count(action: Action, folders: list[Path]) -> None:
    wanted = {Action.ls: 1, Action.show: 1, Action.diff: 2}.get(action)
    if wanted is not None and len(folders) != wanted:
        fix = Fix(f"name {wanted}")
        message = f"`harness checkpoint {action.value}` takes {wanted} paths, got {len(folders)}"
        raise Refused([Finding("SP011", "error", message.replace("1 paths", "1 path"), fix=fix)], Exit.USAGE)


def _list(path: Path, format: Format) -> Exit:
    folder = _folder(path)
    rows = [_row(p) for p in named_in(folder)]
    newest = next((r.manifest.folder.name for r in rows if r.manifest), None)
    if format is Format.json:
        print(view.list_json(folder, rows, Evaluations.read(folder), newest))
    else:
        print(view.listing(folder, rows, Evaluations.read(folder), newest, style_for(sys.stdout)))
    return Exit.OK


def _row(path: Path) -> view.Row:
    try:
        return view.Row(path, read(path), "")
    except Refused as refused:
        return view.Row(path, None, refused.findings[0].message)


def _verify(paths: list[Path], format: Format, *, deep: bool) -> Exit:
    """Each checkpoint by itself, and, of a run, whether `latest` names the newest that is whole."""
    results: list[tuple[Path, list[Finding]]] = []
    for path in paths:
        if is_checkpoint(path):
            results.append((path, problems(path, deep=deep, progress=_progress())))
            continue
        folder = _folder(path)
        mine = [(p, problems(p, deep=deep, progress=_progress())) for p in named_in(folder)]
        whole = next((p for p, found in mine if not any(f.is_error for f in found)), None)
        stale = stale_latest(folder, whole)
        if stale:
            fix = Fix("nothing, for a resume: it looks for itself; the next save writes it anew")
            mine.append((folder / LATEST, [Finding("CK115", "error", f"`{folder / LATEST}`: {stale}", fix=fix)]))
        results += mine
    if format is Format.json:
        print(view.verify_json(results, deep=deep))
    else:
        _print_findings([f for _, found in results for f in found])
        print(view.verified(results, style_for(sys.stdout), deep=deep))
    return Exit.FINDINGS if any(f.is_error for _, found in results for f in found) else Exit.OK


def _progress() -> Callable[[int, int], None] | None:
    """A line that is written over, on a terminal alone."""
    if not sys.stderr.isatty():
        return None

    def tell(done: int, total: int) -> None:
        print(f"\r{view.share(done, total)}", end="\n" if done >= total else "", file=sys.stderr, flush=True)

    return tell


def _show(path: Path, format: Format) -> Exit:
    manifest = _one(path)
    if format is Format.json:
        print(json.dumps(manifest.body, indent=2))
    else:
        print(view.shown(manifest, style_for(sys.stdout)))
    return Exit.OK


def _diff(first: Path, second: Path, format: Format) -> Exit:
    one, other = _one(first), _one(second)
    print(view.diff_json(one, other) if format is Format.json else view.differing(one, other, style_for(sys.stdout)))
    return Exit.OK


def _remove(paths: list[Path], *, yes: bool, force: bool) -> Exit:
    for path in paths:
        if step_of(path.name) is None or not path.is_dir() or path.is_symlink():
            raise Refused([_no_such(path, "is not a checkpoint")], Exit.USAGE)
    for path in paths:
        left = [m for m in complete_in(path.parent) if m.folder.name != path.name]
        if not left and not force and (path / NAME).is_file():
            fix = Fix("give `--force` when it is meant")
            raise Refused(
                [Finding("CK114", "error", f"`{path}` is the only complete checkpoint of its run", fix=fix)], Exit.USAGE
            )
        if not yes and not typer.confirm(f"Remove {path}?", err=True):
            print("Nothing was removed." if path == paths[0] else "Nothing more was removed.", file=sys.stderr)
            return Exit.OK
        try:
            remove(path)
            point_latest(path.parent)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            fix = Fix("see to it that the folder can be written")
            raise Refused(
                [Finding("CK113", "error", f"`{path}` cannot be removed: {reason}", fix=fix)], Exit.USAGE
            ) from None
        print(f"removed {path}")
    return Exit.OK


def is_checkpoint(path: Path) -> bool:
    """Is this path meant as one checkpoint, whole or not?"""
    return path.is_dir() and ((path / NAME).exists() or step_of(path.name) is not None)


def _folder(path: Path) -> Path:
    """The folder of checkpoints of a run. Raises Refused (CK113)."""
    if not path.is_dir():
        raise Refused([_no_such(path, "is not a folder" if path.exists() else "does not exist")], Exit.USAGE)
    folder = checkpoints_folder(path)
    if not named_in(folder):
        raise Refused([_no_such(path, "has no checkpoint")], Exit.USAGE)
    return folder


def _one(path: Path) -> Manifest:
    """The manifest of a checkpoint, or of the newest complete one of a run. Raises Refused."""
    if is_checkpoint(path):
        return read(path)
    chosen, _ = newest_complete(_folder(path), deep=False)
    if chosen is None:
        raise Refused([_no_such(path, "has no complete checkpoint")], Exit.USAGE)
    return read(chosen)


def _no_such(path: Path, what: str) -> Finding:
    fix = Fix("name a run directory, such as `runs/latest`, or one of its `checkpoints/step-*`")
    return Finding("CK113", "error", f"`{path}` {what}", fix=fix)


def _print_findings(found: list[Finding]) -> None:
    if found:
        print(text.findings(found, None, style_for(sys.stderr)), file=sys.stderr)
