"""Which checkpoints may go, and how they go: renamed out of sight first, so that half of one is never taken for one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from harness.checkpoints.latest import (
    LATEST,
    TRASH_PREFIX,
    UNFINISHED_PREFIX,
    checkpoint_name,
    list_checkpoints,
    list_complete_manifests,
)
from harness.file_io import fsync_folder, replace_file


def select_outdated(
    steps: Iterable[int],
    *,
    keep_last: int | None,
    keep_every: int | None = None,
    best: int | None = None,
    protected: Collection[int] = (),
) -> list[int]:
    """The steps whose checkpoints may go, oldest first: all but the newest `keep_last`, every `keep_every`th, the
    best, and those that are protected. Without `keep_last` none goes.
    """
    ordered = sorted(set(steps))
    if keep_last is None:
        return []
    newest = set(ordered[-max(keep_last, 1) :])
    return [
        step
        for step in ordered
        if step not in newest and not (keep_every and step % keep_every == 0) and step != best and step not in protected
    ]


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove one checkpoint: after the first rename nobody can take what is left for a checkpoint. Raises OSError."""
    trash = checkpoint.with_name(f"{TRASH_PREFIX}{checkpoint.name}-{os.getpid()}")
    checkpoint.rename(trash)
    fsync_folder(checkpoint.parent)
    shutil.rmtree(trash)


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove what a save or a removal that was killed has left; returns those. Only while nobody saves there.

    What cannot be removed stays: it harms nobody.
    """
    left = [p for kind in (UNFINISHED_PREFIX, TRASH_PREFIX) for p in folder.glob(f"{kind}*")]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return left


def update_latest(folder: Path) -> None:
    """Let `latest` name the newest checkpoint whose manifest can be read; without one it goes. Raises OSError."""
    newest = next((m.step for m in list_complete_manifests(folder)), None)
    if newest is None:
        (folder / LATEST).unlink(missing_ok=True)
    else:
        replace_file(folder / LATEST, checkpoint_name(newest) + "\n")


def folders_by_step(folder: Path) -> dict[int, Path]:
    """Step -> folder of all that is named like a checkpoint, complete or not."""
    return {int(path.name.removeprefix("step-")): path for path in list_checkpoints(folder)}
