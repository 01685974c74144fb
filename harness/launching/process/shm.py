# SPDX-License-Identifier: Apache-2.0
"""The buffers that DeepSpeed's CPU all-reduce leaves in /dev/shm: 66 MiB a rank, never removed by DeepSpeed.

Named `deepspeed_allreduce_buffer_UID_ADDRESS_PORT_RANK` (`csrc/cpu/comm/shm.cpp`). Other shared memory is not touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from harness.launching.process.processes import find_mapped_files

FOLDER = Path("/dev/shm")  # noqa: S108  (the place that DeepSpeed uses)
_BUFFER_NAME = re.compile(r"deepspeed_allreduce_buffer_(?P<uid>\d+)_(?P<address>.*)_(?P<port>\d+)_(?P<rank>\d+)")


@dataclass(frozen=True, slots=True)
class Buffer:
    """One rank's buffer, its size in bytes, when it was last written (seconds since 1970) and whether a process of this
    machine has it mapped.
    """

    path: Path
    port: int
    size: int
    time: float
    in_use: bool


def find_buffers(folder: Path = FOLDER) -> list[Buffer]:
    """This user's buffers: another user can give a file the same name."""
    try:
        names = [(p, _BUFFER_NAME.fullmatch(p.name)) for p in folder.iterdir()]
    except OSError:
        return []
    matches = [(p, m) for p, m in names if m and m["uid"] == str(os.getuid())]
    if not matches:
        return []
    mapped = find_mapped_files(str(folder / "deepspeed_allreduce_buffer_"))
    stats = ((p, int(m["port"]), _stat(p)) for p, m in sorted(matches, key=lambda pair: pair[0]))
    own = ((p, port, s) for p, port, s in stats if s is not None and s.st_uid == os.getuid())
    return [Buffer(p, port, s.st_size, s.st_mtime, str(p) in mapped) for p, port, s in own]


def remove_unused_buffers(ports: Container[int], folder: Path = FOLDER, *, older_than: float = 0.0) -> int:
    """Remove the buffers of these ports that no process has mapped. Returns the bytes set free.

    `older_than` in seconds spares those that a starting rank has just created and has not mapped yet.
    """
    newest_removable = time.time() - older_than
    freed = 0
    for buffer in find_buffers(folder):
        if buffer.port in ports and not buffer.in_use and buffer.time <= newest_removable:
            with contextlib.suppress(OSError):
                buffer.path.unlink()
                freed += buffer.size
    return freed


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
