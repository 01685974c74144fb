"""Memory of this process and its device, as the kernel and the allocator count it. Nothing waits for the device."""

from __future__ import annotations

import resource
from pathlib import Path

from deepspeed.accelerator import get_accelerator

_STATUS = Path("/proc/self/status")


def memory() -> dict[str, int]:
    """Bytes, under the names that they have in a `step` line; `memory_gpu_*` where there is a device."""
    out = host_memory()
    accelerator = get_accelerator()
    if accelerator.device_name() != "cpu":
        out["memory_gpu_bytes"] = accelerator.memory_allocated()
        out["memory_gpu_reserved_bytes"] = accelerator.memory_reserved()
        out["memory_gpu_peak_bytes"] = accelerator.max_memory_allocated()
    return out


def host_memory() -> dict[str, int]:
    """Resident bytes now and at most."""
    found = {"VmRSS": 0, "VmHWM": 0}
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) * 1024
    # A kernel that reads the peak from less exact counters may say less than what is resident now.
    return {"memory_host_bytes": found["VmRSS"], "memory_host_peak_bytes": max(found.values())}


def page_faults() -> int:
    """Pages that this process has had to read from a disk so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
