# SPDX-License-Identifier: Apache-2.0
"""A swap folder for each run below `nvme_path`, so that the harness can remove it: DeepSpeed removes nothing.

The launcher writes its name into the run's DeepSpeed JSON; the first rank of each node holds a lock in it and removes
it at the end. The next run finds the leftovers of a killed run by their name and by a lock that nobody holds.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.folder_walk import walk_files
from harness.locks import Lock, LockHeld
from harness.planted_files import PlantedFile, find_planted

PREFIX = "harness-swap-"
LOCK = ".harness-lock"
_MIN_AGE_SECONDS = 60.0
"""A folder without a lock may be new: its run is about to lock it."""


@dataclass(frozen=True, slots=True)
class RemovedSwapDir:
    """A removed folder, and the bytes that it held."""

    folder: Path
    size: int


def run_swap_dir(nvme_path: str, run_dir: Path) -> str:
    """The run's folder below `nvme_path`: named after the run directory, the same at each start of the run."""
    digest = hashlib.sha256(str(run_dir).encode()).hexdigest()[:8]
    return str(Path(nvme_path) / f"{PREFIX}{run_dir.name}-{digest}")


def with_run_swap_dirs(config: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """The DeepSpeed JSON with each `nvme_path` in use replaced by the run's own folder below it."""
    result = copy.deepcopy(dict(config))
    for block in _nvme_blocks(result):
        block["nvme_path"] = run_swap_dir(block["nvme_path"], run_dir)
    return result


def swap_dirs_of(config: Mapping[str, Any]) -> list[Path]:
    """The run's own swap folders in its DeepSpeed JSON."""
    paths = {Path(block["nvme_path"]) for block in _nvme_blocks(config)}
    return sorted(path for path in paths if is_swap_dir(path))


def is_swap_dir(folder: Path) -> bool:
    """Is this the swap folder of one run?"""
    return folder.name.startswith(PREFIX)


def make_swap_dir(folder: Path) -> PlantedFile | None:
    """Make a folder to swap to, which nobody else can read, and its parents. Returns what another user may have made on
    the way to it, through which he could read the swapped values, change them, or choose which file they overwrite.
    Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    planted = find_planted(folder)
    if planted is None and is_swap_dir(folder):
        folder.chmod(0o700)
    return planted


def clear_swap_dir(folder: Path) -> None:
    """Remove the swap files of a run's folder. The caller holds its lock."""
    if is_swap_dir(folder):
        shutil.rmtree(folder / "zero_stage_3", ignore_errors=True)


def remove_stale_swap_dirs(parent: Path) -> list[RemovedSwapDir]:
    """Remove the folders below `parent` that no live run holds. What cannot be removed stays, silently, and so
    does what another user may have made.
    """
    removed = []
    for folder in sorted(parent.glob(f"{PREFIX}*")) if parent.is_dir() else []:
        with contextlib.suppress(OSError, LockHeld):
            if not stat.S_ISDIR(folder.lstat().st_mode) or find_planted(folder) is not None:
                continue
            if not (folder / LOCK).exists() and time.time() - folder.stat().st_mtime < _MIN_AGE_SECONDS:
                continue
            lock = Lock.acquire(folder / LOCK, "removing the files of a killed run", private=True)
            size = sum(f.lstat().st_size for f in walk_files(folder / "zero_stage_3"))
            clear_swap_dir(folder)
            lock.release()
            folder.rmdir()  # fails, and leaves it, when it holds other files
            removed.append(RemovedSwapDir(folder, size))
    return removed


def _nvme_blocks(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping) or zero.get("stage") != 3:
        return
    for section in ("offload_optimizer", "offload_param"):
        block = zero.get(section)
        if isinstance(block, dict) and block.get("device") == "nvme" and isinstance(block.get("nvme_path"), str):
            yield block
