"""Python's garbage collector, kept out of the steps: it would look through all objects of the libraries now and then,
on each rank at another time, while the others wait.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_INTERVAL_STEPS = 20
"""Between so many steps the young objects are looked through, on all ranks at once."""


@contextmanager
def disable_automatic_gc() -> Iterator[None]:
    """From here on nothing is collected unless `between_steps` does; what exists now is never looked at again."""
    was = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
        gc.unfreeze()


def collect_between_steps(step: int) -> None:
    """After each step. A cycle that holds a tensor lives `EVERY_STEPS` steps at most."""
    if step % COLLECT_INTERVAL_STEPS == 0 and not gc.isenabled():
        gc.collect(1)
