# SPDX-License-Identifier: Apache-2.0
"""`export_memory.py CHECKPOINT OUT SHARD_BYTES`: exports, and prints the peak of its own (anonymous) memory in bytes above
what it had before. What is mapped from files is not counted: the kernel drops it when it needs the room.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")
from harness.runtime.export import export_checkpoint


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class Peak(threading.Thread):
    """Looks every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes, self.over = 0, False

    def run(self) -> None:
        while not self.over:
            self.bytes = max(self.bytes, anonymous())
            time.sleep(0.003)


if __name__ == "__main__":
    before, peak = anonymous(), Peak()
    peak.start()
    export_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), "float32", int(sys.argv[3]))
    peak.over = True
    print("peak", peak.bytes - before)
