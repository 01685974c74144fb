# SPDX-License-Identifier: Apache-2.0
"""Memory of this process and its device, as the kernel and the allocator count it. Nothing waits for the device."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from functools import cache

from deepspeed.accelerator import get_accelerator

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
