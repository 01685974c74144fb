# SPDX-License-Identifier: Apache-2.0
"""The retention of checkpoints: selects those that may go and removes them. A removal renames first, so that nobody
takes half a checkpoint for one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.checkpoints.latest import (
    LATEST,
    TRASH_PREFIX,
    UNFINISHED_PREFIX,
    find_latest,
    list_checkpoints,
    step_in_name,
)
from harness.checkpoints.manifest import MANIFEST
from harness.file_io import replace_file

_TRASH = re.compile(rf"{re.escape(TRASH_PREFIX)}(step-\d+)-\d+")


def select_outdated(
    steps: Iterable[int],
    *,
    keep_last: int | None,
    keep_every: int | None = None,
    best: int | None = None,
) -> list[int]:
    """The steps whose checkpoints may go, oldest first: all but the newest `keep_last`, every `keep_every`th and
    the best. Without `keep_last` none goes.
    """
    ordered = sorted(set(steps))
    if keep_last is None:
        return []
    newest = set(ordered[-max(keep_last, 1) :])
    return [
        step for step in ordered if step not in newest and not (keep_every and step % keep_every == 0) and step != best
    ]


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove one checkpoint: after the first rename nobody can take what is left for a checkpoint. Raises OSError.

    All of it is relative to the open folder of checkpoints: a link that somebody puts in its place, or in the place of
    the checkpoint, is not followed.
    """
    trash = f"{TRASH_PREFIX}{checkpoint.name}-{os.getpid()}"
    with _open_folder(checkpoint.parent) as parent:
        if not stat.S_ISDIR(os.stat(checkpoint.name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ENOTDIR, "it is a link or a file", str(checkpoint))
        os.rename(checkpoint.name, trash, src_dir_fd=parent, dst_dir_fd=parent)
        os.fsync(parent)
        with contextlib.suppress(FileNotFoundError):  # another process finishes removals there
            shutil.rmtree(trash, dir_fd=parent)


def list_trash(folder: Path) -> dict[Path, str]:
    """Leftovers of removals that were killed in a folder of checkpoints, with the name that each checkpoint had."""
    found = {path: _TRASH.fullmatch(path.name) for path in folder.glob(f"{TRASH_PREFIX}*")}
    return {path: match[1] for path, match in found.items() if match is not None and not path.is_symlink()}


def remove_trash(trash: Path) -> None:
    """Remove one of these. A removal that still runs ends all the same. Raises OSError."""
    with _open_folder(trash.parent) as parent, contextlib.suppress(FileNotFoundError):  # the other one was faster
        shutil.rmtree(trash.name, dir_fd=parent)


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove what a save or a removal that was killed has left; returns those. Only while nobody saves there.

    What cannot be removed stays: it harms nobody.
    """
    leftovers = [p for prefix in (UNFINISHED_PREFIX, TRASH_PREFIX) for p in folder.glob(f"{prefix}*")]
    for path in leftovers:
        _try_to_remove(path)
    return leftovers


def remove_unfinished_saves(folder: Path) -> list[Path]:
    """Remove what a save or a removal that was killed left, which nothing can read and may be large; returns those.

    Only for a run that has ended. A save with a manifest is complete, lacks nothing but its name, and stays.
    """
    unfinished = [p for p in folder.glob(f"{UNFINISHED_PREFIX}*") if not (p / MANIFEST).exists()]
    unfinished += folder.glob(f"{TRASH_PREFIX}*")
    for path in unfinished:
        _try_to_remove(path)
    return unfinished


def _try_to_remove(folder: Path) -> None:
    with contextlib.suppress(RecursionError):  # of folders nested a thousand deep
        shutil.rmtree(folder, ignore_errors=True)


def update_latest_pointer(folder: Path) -> None:
    """Let `latest` name the newest checkpoint whose manifest can be read; without one it goes. Raises OSError."""
    newest = find_latest(folder, verify="manifest").checkpoint
    if newest is None:
        (folder / LATEST).unlink(missing_ok=True)
    else:
        replace_file(folder / LATEST, newest.name + "\n")


def folders_by_step(folder: Path) -> dict[int, Path]:
    """Step -> folder of everything that is named like a checkpoint, complete or not."""
    return {step_in_name(path.name) or 0: path for path in list_checkpoints(folder)}
