# SPDX-License-Identifier: Apache-2.0
"""Records by their length: entry i of a histogram counts those of 2**(i-1) + 1 to 2**i tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class LengthHistogram:
    """Counts of records by length."""

    def __init__(self) -> None:
        self._counts = np.zeros(64, dtype=np.int64)

    def add(self, lengths: np.ndarray | Sequence[int]) -> None:
        """Count records of these lengths."""
        self._counts += _count_lengths(lengths)

    def replace(self, length: int, count: int, lengths: LengthHistogram) -> None:
        """Count those of `lengths` for `count` records of one length."""
        self._counts += lengths._counts - count * _count_lengths([length])

    @property
    def counts(self) -> tuple[int, ...]:
        """The entries up to the last one that is not zero."""
        return tuple(int(count) for count in np.trim_zeros(self._counts, "b"))


def _count_lengths(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    values = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    return np.bincount(np.ceil(np.log2(values)).astype(np.int64), minlength=64)
