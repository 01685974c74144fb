# SPDX-License-Identifier: Apache-2.0
"""Memory of this process and its device, and bytes in swap files. Nothing waits for the device."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from functools import cache
from typing import Any

from deepspeed.accelerator import get_accelerator

from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.metrics import MetricsWriter
from harness.runtime.nvme_io import disk_usage, find_nvme_dirs
from harness.runtime.telemetry.log_interval import LogInterval
from harness.runtime.telemetry.state_bytes import state_bytes

_MIN_SECONDS_BETWEEN_READS = 1.0
"""A read takes a tenth of a millisecond, more on a GPU. So short steps do not all read."""
_last_reading: tuple[float, dict[str, int]] = (-_MIN_SECONDS_BETWEEN_READS, {})
_peak_before_reset = 0
"""Peak resident memory of the earlier phases. The kernel's own peak is reset with each phase."""


def memory_usage() -> dict[str, int]:
    """Bytes, under their names in a `step` line, at most a second old; `memory_gpu_*` on a device."""
    global _last_reading  # noqa: PLW0603
    now = time.monotonic()
    if now - _last_reading[0] >= _MIN_SECONDS_BETWEEN_READS:
        _last_reading = now, {**host_memory_usage(), **_device_memory_usage()}
    return _last_reading[1]


def _device_memory_usage() -> dict[str, int]:
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        return {}
    return {
        "memory_gpu_bytes": accelerator.memory_allocated(),
        "memory_gpu_reserved_bytes": accelerator.memory_reserved(),
        "memory_gpu_peak_bytes": accelerator.max_memory_allocated(),
    }


def host_memory_usage() -> dict[str, int]:
    """Resident bytes now and at the peak, from the kernel. `ru_maxrss` would be quicker, but after fork and exec a
    process still has its parent's.
    """
    status = os.pread(_proc_file_descriptor("status", os.getpid()), 8192, 0)
    resident, peak = (_parse_kilobytes(status, name) * 1024 for name in (b"VmRSS:", b"VmHWM:"))
    return {"memory_host_bytes": resident, "memory_host_peak_bytes": max(resident, peak, _peak_before_reset)}


def read_and_reset_peak_memory() -> dict[str, int]:
    """Bytes now and at the peak since the last call. Then the kernel's peak is reset; where `/proc/self/clear_refs` is
    not writable, it stays that of the process. The peak of a device is that of the process.
    """
    global _peak_before_reset  # noqa: PLW0603
    status = os.pread(_proc_file_descriptor("status", os.getpid()), 8192, 0)
    resident, peak = (_parse_kilobytes(status, name) * 1024 for name in (b"VmRSS:", b"VmHWM:"))
    _peak_before_reset = max(_peak_before_reset, peak)
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:  # noqa: PTH123
        file.write(b"5")  # proc(5): reset the peak resident set
    return {**_device_memory_usage(), "memory_host_bytes": resident, "memory_host_peak_bytes": max(resident, peak)}


def _parse_kilobytes(status: bytes, name: bytes) -> int:
    _, _, rest = status.partition(name)
    return int(rest.split(maxsplit=1)[0]) if rest else 0


@cache
def _proc_file_descriptor(name: str, process: int) -> int:
    """A file of the kernel. It stays open: opening takes longer than reading. `process` keeps forks apart."""
    return os.open(f"/proc/{process}/{name}", os.O_RDONLY)


def major_page_faults() -> int:
    """Pages that this process has read from a disk since its start."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


# Peak memory of each phase of a run, and the bytes of its states: one line `memory` a phase, with all ranks.
#
# Phases are those of the plan: `load`, `resume`, `step` (the first one, forward and backward in it), `save` (the
# first).


class MemoryPhases:
    """The phases of one start. All ranks call `record` in the same order: it is a collective."""

    def __init__(self, distributed: Distributed, metrics: MetricsWriter) -> None:
        self._distributed, self._metrics = distributed, metrics
        self._recorded_phases: set[str] = set()
        self._pending_lines: list[dict[str, Any]] = []
        self._is_writing = False

    def start_writing(self) -> None:
        """Write the lines of earlier phases. The line `run` is written before them."""
        self._is_writing = True
        for line in self._pending_lines:
            self._metrics.write("memory", **line)
        self._pending_lines = []

    def record(self, phase: str, step: int, engine: Engine | None = None) -> None:
        """A phase has ended. Only the first of each name is recorded. With `engine` its states are counted."""
        if phase in self._recorded_phases:
            return
        self._recorded_phases.add(phase)
        own_values = read_and_reset_peak_memory(), state_bytes(engine) if engine is not None else {}
        rank_values = self._distributed.all_gather_object(own_values)
        columns = {f"{key}": [memory[key] for memory, _ in rank_values] for key in rank_values[0][0]}
        states = {
            key: max(rank_states.get(key, 0) for _, rank_states in rank_values)
            for key in sorted({k for _, f in rank_values for k in f})
        }
        line = {"step": step, "phase": phase, **columns, **({"states": states} if states else {})}
        if self._is_writing:
            self._metrics.write("memory", **line)
        else:
            self._pending_lines.append(line)


_DISK_USAGE_INTERVAL_SECONDS = 30.0


class NvmeUsage:
    """The swap folders of a run. Their size is read every 30 seconds.

    `counts_traffic`: the patch `nvme-counters` is applied. Without it there are no fields of the traffic.
    """

    def __init__(self, ds_config: dict[str, Any], *, counts_traffic: bool) -> None:
        self._folders, self._counts_traffic = find_nvme_dirs(ds_config), counts_traffic
        self._num_bytes, self._read_at = 0, -_DISK_USAGE_INTERVAL_SECONDS

    def fields(self, interval: LogInterval) -> dict[str, Any]:
        """Empty where the run does not swap to NVMe."""
        if not self._folders:
            return {}
        now = time.monotonic()
        if now - self._read_at >= _DISK_USAGE_INTERVAL_SECONDS:
            self._num_bytes, self._read_at = disk_usage(self._folders), now
        if not self._counts_traffic:
            return {"nvme_bytes": self._num_bytes}
        return {
            "seconds_io": round(interval.io_seconds / interval.steps, 6),
            "nvme_bytes": self._num_bytes,
            "nvme_read_bytes": round(interval.bytes_read / interval.steps),
            "nvme_write_bytes": round(interval.bytes_written / interval.steps),
        }
