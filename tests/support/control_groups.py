# SPDX-License-Identifier: Apache-2.0
"""A process in a control group without memory: the kernel's out-of-memory killer ends it. No tests."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_VERSION_1 = Path("/sys/fs/cgroup/memory")
_VERSION_2 = Path("/sys/fs/cgroup")
NO_GROUP = "no control group with a memory limit can be made here"


@contextlib.contextmanager
def memory_limit(pid: int) -> Iterator[None]:
    """A running process without a page more from now on; skips the test where control groups cannot be written. At the end
    what is left in the group is killed.
    """
    is_first_version = (_VERSION_1 / "memory.limit_in_bytes").exists()
    root = _VERSION_1 if is_first_version else _VERSION_2
    group = root / f"harness-test-{pid}"
    try:
        if not is_first_version and "memory" not in (root / "cgroup.subtree_control").read_text().split():
            (root / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
    except OSError:
        pytest.skip(NO_GROUP)
    try:
        # What it has allocated stays with its old group: its next page is the first that counts.
        (group / ("memory.limit_in_bytes" if is_first_version else "memory.max")).write_text("0")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        while left := (group / "cgroup.procs").read_text().split():
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            time.sleep(0.1)
        group.rmdir()
