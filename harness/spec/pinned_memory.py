# SPDX-License-Identifier: Apache-2.0
"""The allocator of pinned host memory that a run takes: torch's, or DeepSpeed's own.

torch's rounds each block up to a power of two (`CachingHostAllocator.h`). DeepSpeed's, from 0.19.6 on, takes the exact
bytes with `mlock` and registers them with the device (`deepspeed/utils/pin_memory.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.spec.sections.zero_spec import ZeroSpec

BACKEND_VARIABLE = "DS_PIN_MEMORY_BACKEND"
"""The variable that DeepSpeed reads in each rank."""


def pins_natively(zero: ZeroSpec, env: Mapping[str, str]) -> bool:
    """Does DeepSpeed's own allocator pin the buffers of a run? A variable of `launch.env` decides over the key."""
    value = env.get(BACKEND_VARIABLE)
    return zero.pin_memory_backend == "native" if value is None else value.strip().lower() == "native"
