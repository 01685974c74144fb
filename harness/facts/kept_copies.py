# SPDX-License-Identifier: Apache-2.0
"""Copies of the sub-groups that are stepped beside the backward pass (`patches/overlapped_step.py`): bytes, number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

STATE_BYTES = 12
KEPT_BYTES = STATE_BYTES + 2
"""Of an element: a second master and second states, and new weights in 16 bits."""


def kept_bytes(size: int, *, is_rounded: bool) -> int:
    """Of a sub-group with so many elements. `is_rounded`: torch pins the new weights, in a power of two."""
    return STATE_BYTES * size + (1 << (2 * size - 1).bit_length() if is_rounded else 2 * size)


def count_overlapped(sizes: Sequence[int], gib: float, *, is_rounded: bool = False) -> int:
    """Of sub-groups with so many elements, the last ones whose copies fit: their gradients come first."""
    sums = accumulate(kept_bytes(size, is_rounded=is_rounded) for size in reversed(sizes))
    return sum(each <= gib * 2**30 for each in sums)
