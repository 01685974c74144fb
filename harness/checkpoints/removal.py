# SPDX-License-Identifier: Apache-2.0
"""Remove a checkpoint that the user names. Raises UserError where it is none, the last one, or cannot be removed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from harness.checkpoints.checkpoint_list import no_checkpoint_finding
from harness.checkpoints.latest import list_complete_manifests, step_in_name
from harness.checkpoints.manifest import MANIFEST
from harness.checkpoints.retention import list_trash, remove_checkpoint, remove_trash, update_latest_pointer
from harness.errors import ExitCode, UserError, user_error
from harness.folder_walk import MAX_DEPTH, find_deep_folder

ROOT = 0
MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
"""The kernel writes a blank of a mount point so."""


def finish_killed_removals(paths: Iterable[Path]) -> list[Path]:
    """Of the paths those that a killed removal has taken away. What it left goes now, with all that is like it."""
    finished = []
    for path in (path for path in paths if step_in_name(path.name) is not None):
        removed = set()
        for trash, name in list_trash(path.parent).items():
            with contextlib.suppress(OSError):
                if not _reason_to_refuse(trash):
                    remove_trash(trash)
                    removed.add(name)
        if path.name in removed and not path.exists():
            finished.append(path)
            with contextlib.suppress(OSError):
                update_latest_pointer(path.parent)
    return finished


def require_checkpoints(paths: Iterable[Path]) -> None:
    """Raises UserError (CK113) unless each path is a checkpoint itself."""
    for path in paths:
        if step_in_name(path.name) is None or not path.is_dir() or path.is_symlink():
            raise UserError([no_checkpoint_finding(path, "is not a checkpoint")], ExitCode.USAGE)
        reason = _reason_to_refuse(path)
        if reason:
            message = f"`{path}` is not removed: {reason}"
            raise user_error("CK113", message, fix="check it, and remove it by hand", code=ExitCode.USAGE)


def _reason_to_refuse(checkpoint: Path) -> str:
    """Why a removal might reach further than the checkpoint, in words; empty where it cannot."""
    for folder in (checkpoint.parent, checkpoint.parent.parent):
        if folder.is_symlink() and folder.lstat().st_uid not in (ROOT, os.geteuid()):
            return f"`{folder}` is a link that another user made"
    mounts = find_mounts(checkpoint.resolve())
    if mounts:
        return f"`{mounts[0]}` is a mount, which may hold anything"
    if find_deep_folder(checkpoint) is not None:
        return f"it has folders nested more than {MAX_DEPTH} deep, which no save writes"
    return ""


def find_mounts(folder: Path) -> list[str]:
    """The mount points at and below an absolute path; none where the kernel does not say them."""
    try:
        rows = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    points = (_OCTAL.sub(lambda match: chr(int(match[1], 8)), row.split(" ")[4]) for row in rows)
    return [point for point in points if Path(point).is_relative_to(folder)]


def require_another_complete(path: Path) -> None:
    """Raises UserError (CK114) where the checkpoint is the only complete one of its run."""
    others = [m for m in list_complete_manifests(path.parent) if m.folder.name != path.name]
    if not others and (path / MANIFEST).is_file():
        message = f"`{path}` is the only complete checkpoint of its run"
        raise user_error("CK114", message, fix="`--force` removes it", code=ExitCode.USAGE)


def remove_and_update_latest(path: Path) -> None:
    """Remove the checkpoint and let `latest` name the newest that is left."""
    try:
        remove_checkpoint(path)
        update_latest_pointer(path.parent)
    except OSError as error:
        message = f"`{path}` cannot be removed: {(error.strerror or str(error)).lower()}"
        raise user_error("CK113", message, fix="make the folder writable", code=ExitCode.USAGE) from None
