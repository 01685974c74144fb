"""`metrics.jsonl`: one JSON object a line, from rank 0, flushed at once, so that a killed run keeps what it has said.

It measures time and memory; it does not draw anything for people.
"""

from __future__ import annotations

import json
import math
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
        """Append one line `{"type": kind, ...}`; fields that are None are left out, and a value that is not finite is
        null, since JSON has no NaN.
        """
        if self._file:
            body = {"type": kind, **{k: _finite(v) for k, v in fields.items() if v is not None}}
            self._file.write(json.dumps(body, allow_nan=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Nothing more will be written."""
        if self._file:
            self._file.close()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Stopwatch:
    """Seconds of one step and of its parts. On a GPU the parts are timed by events that the device passes, so that
    measuring never makes the host wait inside a step; `take` waits once.
    """

    def __init__(self) -> None:
        self._accelerator = get_accelerator()
        self._on_device = self._accelerator.device_name() != "cpu"
        self._measured = False
        self._began = 0.0
        self._parts: list[tuple[str, Any, Any]] = []

    def start(self, *, measured: bool) -> None:
        """A step begins; only a measured one keeps its parts."""
        self._measured, self._began = measured, time.perf_counter()
        self._parts.clear()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside under this name."""
        if not self._measured:
            yield
            return
        start = self._edge()
        yield
        self._parts.append((name, start, self._edge()))

    def _edge(self) -> Any:
        if not self._on_device:
            return time.perf_counter()
        event = self._accelerator.Event(enable_timing=True)
        event.record()
        return event

    def take(self) -> tuple[float, dict[str, float]]:
        """Seconds since `start`, and of each part, rounded to microseconds; the device has done all of it."""
        if self._on_device:
            self._accelerator.synchronize()
        total, parts = time.perf_counter() - self._began, Counter[str]()
        for name, start, end in self._parts:
            parts[name] += start.elapsed_time(end) / 1000 if self._on_device else end - start
        return round(total, 6), {name: round(value, 6) for name, value in parts.items()}


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
