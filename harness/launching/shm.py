"""The buffers that DeepSpeed's CPU all-reduce leaves in /dev/shm: 66 MiB a rank, never removed by DeepSpeed.

Named `deepspeed_allreduce_buffer_UID_ADDRESS_PORT_RANK` (`csrc/cpu/comm/shm.cpp`). Other shared memory is not touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from harness.launching.processes import mapped_files

FOLDER = Path("/dev/shm")  # noqa: S108  (the place that DeepSpeed uses)
_NAME = re.compile(r"deepspeed_allreduce_buffer_(?P<uid>\d+)_(?P<address>.*)_(?P<port>\d+)_(?P<rank>\d+)")


@dataclass(frozen=True, slots=True)
class Buffer:
    """One rank's buffer, its size in bytes and whether a process of this machine has it mapped."""

    path: Path
    port: int
    size: int
    in_use: bool


def buffers(folder: Path = FOLDER) -> list[Buffer]:
    """This user's buffers."""
    try:
        names = [(p, _NAME.fullmatch(p.name)) for p in folder.iterdir()]
    except OSError:
        return []
    ours = [(p, m) for p, m in names if m and int(m["uid"]) == os.getuid()]
    if not ours:
        return []
    mapped = mapped_files(str(folder / "deepspeed_allreduce_buffer_"))
    return [Buffer(p, int(m["port"]), _size(p), str(p) in mapped) for p, m in sorted(ours)]


def remove_unused(ports: Container[int], folder: Path = FOLDER) -> int:
    """Remove the buffers of these ports that no process has mapped. Returns the bytes set free."""
    freed = 0
    for buffer in buffers(folder):
        if buffer.port in ports and not buffer.in_use:
            buffer.path.unlink(missing_ok=True)
            freed += buffer.size
    return freed


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
