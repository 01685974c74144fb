# SPDX-License-Identifier: Apache-2.0
"""The folder in which an export is written: a new one beside the output, which no other user can enter and which has a
lock while its process lives. What a killed export left there is removed by the next one to the same output.

A folder goes only if it is this user's, has nothing but what an export makes, and nobody holds its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK, _CONTENT = "harness-export.lock", "content"
_SECONDS_WITHOUT_LOCK = 60.0


@contextmanager
def scratch_folder(out: Path) -> Iterator[Path]:
    """A new path, for a folder that is then renamed to `out`; all that is left goes at the end. Raises OSError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(out)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
    try:
        with (scratch / _LOCK).open("x") as lock:
            _try_to_lock(lock.fileno())
            yield scratch / _CONTENT
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_leftovers(out: Path) -> None:
    for folder in out.parent.glob(f".{glob.escape(out.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if _is_leftover(folder):
                shutil.rmtree(folder)


def _is_leftover(folder: Path) -> bool:
    """Raises OSError."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        return False
    names = {path.name for path in folder.iterdir()}
    if not names:  # killed before it had its lock
        return time.time() - status.st_mtime > _SECONDS_WITHOUT_LOCK
    if _LOCK not in names or names - {_LOCK, _CONTENT}:
        return False
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _try_to_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_to_lock(descriptor: int) -> bool:
    """False where another process holds the lock, and where the file system has none: then nobody removes anything."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
