# SPDX-License-Identifier: Apache-2.0
"""A disk that fails on purpose (`disk_faults.c`): the n-th write, fsync, rename, open, mkdir or unlink of a process on a
matching path fails, is cut short, is slow, or kills the process.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("disk_faults.c")
FOREVER = 1e6


def build_disk_faults(folder: Path) -> Path:
    """Compile the library for LD_PRELOAD into a folder, in a fraction of a second."""
    library = folder / "disk_faults.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    return library


def describe_fault(op: str, glob: str, nth: int, action: str, seconds: float = 0.0) -> dict[str, str]:
    """The variable that makes a process with the library fail; `disk_faults.c` describes the values."""
    return {"DISK_FAULT": f"{op} {glob} {nth} {action} {seconds}"}
