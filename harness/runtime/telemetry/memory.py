"""Memory of this process and its device, as the kernel and the allocator count it. Nothing waits for the device."""

from __future__ import annotations

import os
import resource
import time
from functools import cache

from deepspeed.accelerator import get_accelerator

_PAGE = resource.getpagesize()
_EVERY_SECONDS = 0.25
"""Asking takes a tenth of a millisecond, a GPU's allocator more: where steps are shorter, not each of them asks."""
_PEAK_EVERY_SECONDS = 1.0
_peak = {"bytes": 0, "at": -_PEAK_EVERY_SECONDS}
_last: tuple[float, dict[str, int]] = (-_EVERY_SECONDS, {})


def memory() -> dict[str, int]:
    """Bytes, under the names that they have in a `step` line, of now or a quarter of a second ago; `memory_gpu_*` where
    there is a device.
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
    """Resident bytes now and at most. The kernel keeps the peak, in a file that takes long to read: asked for once a
    second. `ru_maxrss` would be quicker, but a process that was forked and replaced still has its parent's.
    """
    now = int(_read("statm", os.getpid()).split()[1]) * _PAGE
    if time.monotonic() - _peak["at"] >= _PEAK_EVERY_SECONDS:
        _peak["at"] = time.monotonic()
        _, _, rest = _read("status", os.getpid()).partition(b"VmHWM:")
        _peak["bytes"] = int(rest.split(maxsplit=1)[0]) * 1024 if rest else 0
    return {"memory_host_bytes": now, "memory_host_peak_bytes": int(max(now, _peak["bytes"]))}


def _read(name: str, process: int) -> bytes:
    return os.pread(_opened(name, process), 8192, 0)


@cache
def _opened(name: str, process: int) -> int:
    """A file of the kernel, left open: opening one takes longer than reading it. Of this process, should it fork."""
    return os.open(f"/proc/{process}/{name}", os.O_RDONLY)


def page_faults() -> int:
    """Pages that this process has had to read from a disk so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
