"""Memory of this process and its device, as the kernel and the allocator count it. Nothing waits for the device."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from functools import cache

from deepspeed.accelerator import get_accelerator

_EVERY_SECONDS = 1.0
"""Asking takes a tenth of a millisecond, a GPU's allocator more: where steps are shorter, not each of them asks."""
_last: tuple[float, dict[str, int]] = (-_EVERY_SECONDS, {})
_most_before = 0
"""Resident at most in the phases that are over: the kernel forgets it when a phase begins."""


def memory() -> dict[str, int]:
    """Bytes, under the names that they have in a `step` line, of now or a second ago; `memory_gpu_*` where there is
    a device.
    """
    global _last  # noqa: PLW0603
    now = time.monotonic()
    if now - _last[0] >= _EVERY_SECONDS:
        _last = now, {**host_memory(), **_device_memory()}
    return _last[1]


def _device_memory() -> dict[str, int]:
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        return {}
    return {
        "memory_gpu_bytes": accelerator.memory_allocated(),
        "memory_gpu_reserved_bytes": accelerator.memory_reserved(),
        "memory_gpu_peak_bytes": accelerator.max_memory_allocated(),
    }


def host_memory() -> dict[str, int]:
    """Resident bytes now and at most, as the kernel keeps them. `ru_maxrss` would be quicker, but a process that was
    forked and replaced still has its parent's.
    """
    status = os.pread(_opened("status", os.getpid()), 8192, 0)
    now, most = (_kilobytes(status, name) * 1024 for name in (b"VmRSS:", b"VmHWM:"))
    return {"memory_host_bytes": now, "memory_host_peak_bytes": max(now, most, _most_before)}


def memory_of_phase() -> dict[str, int]:
    """Bytes now and at most since this was asked before; then the kernel starts to count anew. Where it does not let
    us (`/proc/self/clear_refs`), at most so far. Of a device: at most so far.
    """
    global _most_before  # noqa: PLW0603
    status = os.pread(_opened("status", os.getpid()), 8192, 0)
    now, most = (_kilobytes(status, name) * 1024 for name in (b"VmRSS:", b"VmHWM:"))
    _most_before = max(_most_before, most)
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:  # noqa: PTH123
        file.write(b"5")  # proc(5): reset the peak resident set
    return {**_device_memory(), "memory_host_bytes": now, "memory_host_peak_bytes": max(now, most)}


def _kilobytes(status: bytes, name: bytes) -> int:
    _, _, rest = status.partition(name)
    return int(rest.split(maxsplit=1)[0]) if rest else 0


@cache
def _opened(name: str, process: int) -> int:
    """A file of the kernel, left open: opening one takes longer than reading it. Of this process, should it fork."""
    return os.open(f"/proc/{process}/{name}", os.O_RDONLY)


def page_faults() -> int:
    """Pages that this process has had to read from a disk so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
