"""The causes. Each file has a function `look`, which says nothing (None) where its cause is not the matter."""

from collections.abc import Callable

from harness.slowness.case import Case, Slow
from harness.slowness.causes import (
    bubble,
    communication,
    cpu_optimizer,
    data,
    nvme,
    padding,
    pcie,
    recompute,
    small_batch,
)

LOOKS: tuple[Callable[[Case], Slow | None], ...] = (
    data.look,
    communication.look,
    cpu_optimizer.look,
    pcie.look,
    nvme.look,
    bubble.look,
    recompute.look,
    small_batch.look,
    padding.look,
)
