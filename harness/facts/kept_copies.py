# SPDX-License-Identifier: Apache-2.0
"""Copies of the sub-groups that are stepped beside the backward pass (`patches/overlapped_step.py`): bytes, number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

OLD_BYTES = 12
KEPT_BYTES = OLD_BYTES + 2
"""Of an element: old master and states, and new weights in 16 bits."""


def count_overlapped(sizes: Sequence[int], gib: float) -> int:
    """Of sub-groups with so many elements, the last ones whose copies fit: their gradients come first."""
    sums = accumulate(KEPT_BYTES * size for size in reversed(sizes))
    return sum(each <= gib * 2**30 for each in sums)
