# SPDX-License-Identifier: Apache-2.0
"""A walk through a folder that somebody else may have made: no recursion, no link followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MAX_DEPTH = 64
"""Levels of folders; a checkpoint has three, a tree of logs ten."""


def walk_files(folder: Path) -> Iterator[Path]:
    """Everything below `folder` that is no folder, and each folder that is nested deeper than `MAX_DEPTH`, unopened.
    A folder that cannot be read is left out. Raises nothing.
    """
    pending = [(str(folder), 1)]
    while pending:
        current, depth = pending.pop()
        try:
            with os.scandir(current) as entries:
                found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError:
            continue
        for path, is_folder in found:
            if is_folder and depth < MAX_DEPTH:
                pending.append((path, depth + 1))
            else:
                yield Path(path)


def find_deep_folder(folder: Path) -> Path | None:
    """A folder nested deeper than `MAX_DEPTH`; None if there is none."""
    return next((path for path in walk_files(folder) if path.is_dir() and not path.is_symlink()), None)
