# SPDX-License-Identifier: Apache-2.0
"""The limit on locked memory of this machine, for runs whose buffers DeepSpeed's own allocator pins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.spec.pinned_memory import pins_natively
from harness.spec.sections.zero_spec import ZeroSpec
from harness.units import format_bytes


def check_locked_memory(zero: ZeroSpec, env: Mapping[str, str], local_ranks: int | None) -> Iterator[Finding]:
    """A finding where a limit would end this machine's own ranks. `env`: `launch.env`."""
    limit = machine.memlock_limit()
    if local_ranks is None or limit is None or not pins_natively(zero, env) or not _pins(zero):
        return
    yield Finding(
        "EN024",
        "error",
        f"a process here may lock {format_bytes(limit)} of memory, and `native` locks all pinned buffers",
        key="zero.pin_memory_backend",
        notes=("DeepSpeed aborts where `mlock` fails: `Assertion 'nullptr != pinned_buffer' failed`, no Python error",),
        fix=Fix("raise the limit (`ulimit -l unlimited`, `--ulimit memlock=-1` of Docker), or set it to `torch`"),
    )


def _pins(zero: ZeroSpec) -> bool:
    offloads = (zero.offload_optimizer, zero.offload_param)
    return any(each is not None and each.device != "none" and each.pin_memory for each in offloads)
