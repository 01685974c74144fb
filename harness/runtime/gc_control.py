# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector between steps: automatic collections are off, since pauses at other times on each rank
stall all ranks. Every 20 steps all ranks collect at once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_INTERVAL_STEPS = 20
"""Every so many steps all ranks collect the young generations at once."""


@contextmanager
def disable_automatic_gc() -> Iterator[None]:
    """In this context only `collect_between_steps` collects, and never the objects that exist already."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        gc.unfreeze()


def collect_between_steps(step: int) -> None:
    """After each step. A cycle that holds a tensor lives `COLLECT_INTERVAL_STEPS` steps at most."""
    if step % COLLECT_INTERVAL_STEPS == 0 and not gc.isenabled():
        gc.collect(1)
