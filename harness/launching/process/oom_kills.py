# SPDX-License-Identifier: Apache-2.0
"""The kernel's count of processes that it killed because memory had run out: of the host, or of a control group.

The count rises before such a process ends, so that its rise tells the kernel's SIGKILL from one that a process sent.
"""

from __future__ import annotations

import re
import time
from collections import deque
from pathlib import Path

VMSTAT = Path("/proc/vmstat")
_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_WINDOW_SECONDS = 30.0
"""The kernel may have chosen a process so long before its end: freeing the memory of a large rank takes seconds."""


def read_oom_kills() -> int | None:
    """The count since the host started; None if the kernel does not report it."""
    try:
        match = _OOM_KILL.search(VMSTAT.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return int(match[1]) if match else None


class OomKillHistory:
    """The counts of the last seconds on one host. `add` often, and once more after a process has ended: a count from
    before its end may lack its own kill. Then ask `has_risen`.
    """

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int | None]] = deque()

    def add(self, count: int | None) -> None:
        """A count that was read now."""
        now = time.monotonic()
        self._counts.append((now, count))
        while len(self._counts) > 1 and self._counts[1][0] < now - _WINDOW_SECONDS:
            self._counts.popleft()

    def has_risen(self) -> bool | None:
        """Has the kernel killed a process for memory in the last seconds? None where it does not count."""
        counts = [count for _, count in self._counts if count is not None]
        return counts[-1] > counts[0] if len(counts) > 1 else None
