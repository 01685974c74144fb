# SPDX-License-Identifier: Apache-2.0
"""A disk that was full when a run failed: which one, how much it needs, and the wait until somebody has emptied it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from harness.folder_walk import walk_files
from harness.units import format_bytes, parse_bytes

MAX_SPACE_SECONDS = 3600.0
"""The limit for somebody to free space before the run ends."""
_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_SHARED_MEMORY = re.compile(r"/dev/shm|</(?:torch|psm)_")  # noqa: S108
_OWN_FINDING = re.compile(r"it needs (?P<needed>[\d.]+ \w+) and a margin of .* are free in `(?P<folder>[^`]+)`")
_PATH = re.compile(r"(?:on device|exceeded): ['\"]?(?P<path>/[^'\"\n]+)")
_MARGIN_BYTES = 4 << 20


def is_disk_full_error(error: str) -> bool:
    """True if a write to a disk failed for lack of space, or at a quota. Shared memory is none."""
    return bool(_FULL.search(error)) and not _SHARED_MEMORY.search(error)


def find_full_disk(run_dir: Path, error: str) -> tuple[Path, int]:
    """The folder that was full according to the error, else the run directory, and the bytes that another attempt
    needs there: those of the error, else those of the largest checkpoint, also of one that was being written.
    """
    own, path = _OWN_FINDING.search(error), _PATH.search(error)
    folder = Path(own["folder"] if own else path["path"] if path else run_dir)
    folder = _existing(folder)
    if own:
        return folder, parse_bytes(own["needed"]) + _MARGIN_BYTES
    checkpoints = _existing(run_dir / "checkpoints")
    if os.stat(folder).st_dev != os.stat(checkpoints).st_dev:  # noqa: PTH116
        return folder, _MARGIN_BYTES
    sizes = [_size_of(entry) for entry in (run_dir / "checkpoints").glob("*") if entry.is_dir()]
    return folder, max(sizes, default=0) + _MARGIN_BYTES


def _existing(folder: Path) -> Path:
    """The nearest folder above that is there: somebody may have removed it to free space."""
    while not os.path.isdir(folder):  # noqa: PTH112 - a name that cannot be looked at raises nothing here
        folder = folder.parent
    return folder


def _size_of(folder: Path) -> int:
    size = 0
    for file in walk_files(folder):
        with contextlib.suppress(OSError):
            size += file.lstat().st_size
    return size


def wait_for_space(
    folder: Path, needed: int, log: Callable[[str], None], heartbeat: Callable[[], None], is_stopped: Callable[[], bool]
) -> bool:
    """Wait until the disk of the folder has so many free bytes. False if it has not within MAX_SPACE_SECONDS; True also
    if the run is to stop.
    """
    deadline, has_said = time.monotonic() + MAX_SPACE_SECONDS, False
    while (free := shutil.disk_usage(_existing(folder)).free) < needed and not is_stopped():
        if not has_said:
            log(f"waiting for {format_bytes(needed)} of free space in {folder}, where {format_bytes(free)} are free")
            has_said = True
        if time.monotonic() >= deadline:
            return False
        heartbeat()
        time.sleep(0.2)
    return True
