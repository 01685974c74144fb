# SPDX-License-Identifier: Apache-2.0
"""A disk that was full when a run failed: which one, how much it needs, and the wait until somebody has emptied it."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from harness.folder_walk import walk_files
from harness.units import format_bytes, parse_bytes

MAX_SPACE_SECONDS = 3600.0
"""The limit for somebody to free space before the run ends."""
_FULL = re.compile(r"no space left on device|disk quota exceeded|file too large", re.IGNORECASE)
_OWN_FINDING = re.compile(r"it needs (?P<needed>[\d.]+ \w+) and a margin of .* are free in `(?P<folder>[^`]+)`")
_PATH = re.compile(r"(?:on device|exceeded|too large): ['\"]?(?P<path>/[^'\"\n]+)")
_MARGIN_BYTES = 4 << 20


def is_disk_full_error(error: str) -> bool:
    """True if a write failed for lack of space, or at a quota."""
    return bool(_FULL.search(error))


def find_full_disk(run_dir: Path, error: str) -> tuple[Path, int]:
    """The folder that was full according to the error, else the run directory, and the bytes that another attempt
    needs there: those of the error, else those of the largest checkpoint, also of one that was being written.
    """
    own, path = _OWN_FINDING.search(error), _PATH.search(error)
    folder = Path(own["folder"] if own else path["path"] if path else run_dir)
    while not folder.is_dir():
        folder = folder.parent
    if own:
        return folder, parse_bytes(own["needed"]) + _MARGIN_BYTES
    sizes = [_size_of(entry) for entry in (run_dir / "checkpoints").glob("*") if entry.is_dir()]
    return folder, max(sizes, default=0) + _MARGIN_BYTES


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
    while (free := shutil.disk_usage(folder).free) < needed and not is_stopped():
        if not has_said:
            log(f"waiting for {format_bytes(needed)} of free space in {folder}, where {format_bytes(free)} are free")
            has_said = True
        if time.monotonic() >= deadline:
            return False
        heartbeat()
        time.sleep(0.2)
    return True
