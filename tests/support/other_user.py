# SPDX-License-Identifier: Apache-2.0
"""Another user of the same host: files of his, and a program that he runs. Needs root; this process is the victim."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MALLORY = 54321
_HOLD = """
import fcntl, os, sys, time
os.setgroups([]), os.setgid(int(sys.argv[1])), os.setuid(int(sys.argv[1]))
fcntl.flock(os.open(sys.argv[2], os.O_RDONLY), fcntl.LOCK_EX)
print(1, flush=True)
time.sleep(60)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def give_to_other(*paths: Path) -> Path:
    """Make another user the owner of these files, and of everything below a folder; returns the first."""
    for path in paths:
        for place in (path, *path.rglob("*")) if path.is_dir() and not path.is_symlink() else (path,):
            os.chown(place, MALLORY, MALLORY, follow_symlinks=False)
    return paths[0]


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that every user can reach: pytest's own is private."""
    folder = Path(tempfile.mkdtemp(prefix="shared-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def other_holds(path: Path) -> Iterator[None]:
    """Another user, who may only read a file, holds its `flock`."""
    child = subprocess.Popen(
        [sys.executable, "-IS", "-c", _HOLD, str(MALLORY), path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline(), "he cannot open it"
        yield
    finally:
        child.kill()
        child.communicate()
