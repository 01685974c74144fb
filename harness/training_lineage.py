# SPDX-License-Identifier: Apache-2.0
"""Reads from `launch.json` which runs are one training: a run, those that resumed it, and the branches that left it.

Only run directories of the same folder belong to a training: a copied one must not lead to another place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import input_limits
from harness.file_io import parse_json, read_regular

_MAX_PARTS = 10_000


@dataclass(frozen=True, slots=True)
class TrainingPart:
    """The place of a run in its training."""

    training: str
    """The directory's name of the first run of the training."""
    parent: str | None = None
    """That of the run whose checkpoint this one resumed from."""
    branch_of: str | None = None
    """The training that this one left at an older step, with other settings."""


def read_training_part(run_dir: Path) -> TrainingPart:
    """That of a run directory. A run of a release that did not write it down is a training of its own."""
    try:
        launch: Any = parse_json(read_regular(run_dir / "launch.json", input_limits.RUN_FILE, follow=False))
    except (OSError, ValueError):
        launch = {}
    names = launch if isinstance(launch, dict) else {}
    resume = names.get("resume")
    parent = names.get("parent", Path(resume).parent.parent.name if isinstance(resume, str) else None)
    own = run_dir.resolve().name
    return TrainingPart(
        _folder_name(names.get("training")) or own, _folder_name(parent), _folder_name(names.get("branch_of"))
    )


def find_earlier_runs(run_dir: Path) -> list[Path]:
    """The directories of the run that this one resumed, of the one which that resumed, and so on; the oldest first."""
    folder, earlier = run_dir.resolve(), list[Path]()
    seen = {folder}
    while len(earlier) < _MAX_PARTS:
        parent = read_training_part(folder).parent
        folder = folder.parent / parent if parent else folder
        if folder in seen or folder.is_symlink() or not folder.is_dir():
            break
        seen.add(folder)
        earlier.append(folder)
    return earlier[::-1]


def find_first_run(run_dir: Path) -> Path:
    """The directory of the first run of a training, where this user has it; else the run's own."""
    first = run_dir.resolve().parent / read_training_part(run_dir).training
    try:
        is_own = not first.is_symlink() and (first / "launch.json").stat().st_uid == os.getuid()
    except OSError:
        is_own = False
    return first if is_own else run_dir


def _folder_name(value: Any) -> str | None:
    return value if isinstance(value, str) and value and Path(value).name == value and value != ".." else None
