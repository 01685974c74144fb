"""`metrics.jsonl`: one JSON object a line, from rank 0, flushed at once, so that a killed run keeps what it has said.

It measures time and memory; it does not draw anything for people.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepspeed.accelerator import get_accelerator

FORMAT_VERSION = 1


class Metrics:
    """The file. On ranks other than 0 (`path` None) it swallows what it is told."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("a", encoding="utf-8") if path else None

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line `{"type": kind, ...}`; fields that are None are left out."""
        if self._file:
            body = {"type": kind, **{k: v for k, v in fields.items() if v is not None}}
            self._file.write(json.dumps(body) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Nothing more will be written."""
        if self._file:
            self._file.close()


class Stopwatch:
    """Seconds by part of a step. `synchronise` waits for the accelerator at each edge, so that the parts are true."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.synchronise = False

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside under this name."""
        start = self._now()
        yield
        self.seconds[name] += self._now() - start

    def _now(self) -> float:
        if self.synchronise:
            get_accelerator().synchronize()
        return time.perf_counter()

    def take(self) -> dict[str, float]:
        """Seconds by part since the last call, rounded to microseconds."""
        out = {name: round(value, 6) for name, value in self.seconds.items()}
        self.seconds.clear()
        return out


def memory() -> dict[str, int]:
    """Bytes of this rank: resident on the host now, and the accelerator's peak where there is one."""
    out = {"memory_host_bytes": _resident_bytes()}
    accelerator = get_accelerator()
    if accelerator.device_name() != "cpu":
        out["memory_gpu_peak_bytes"] = accelerator.max_memory_allocated()
    return out


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
