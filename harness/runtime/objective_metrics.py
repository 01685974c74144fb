# SPDX-License-Identifier: Apache-2.0
"""Metrics of an objective beside its loss: means over the rows of a global batch, or of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from harness.runtime.distributed import Distributed


class ObjectiveMetrics:
    """Sums by name, on the device. Every rank has the same names; without any there is no collective."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._sums: dict[str, torch.Tensor] = {}

    def reset(self) -> None:
        """Forget the sums: at the begin of a step, and of an evaluation."""
        self._sums = {}

    def add(self, name: str, total: torch.Tensor, count: torch.Tensor) -> None:
        """Add the sum of some values, and how many they are; scalars on the device, without gradient."""
        pair = torch.stack([total.detach().double(), count.detach().double()])
        self._sums[name] = self._sums[name] + pair if name in self._sums else pair

    def read_means_async(self, distributed: Distributed) -> Callable[[], dict[str, float | None]]:
        """Start the sums over the ranks. The returned function waits for them, and returns the mean of each name, None
        for one without values. A collective.
        """
        if not self._names:
            return dict
        zero = torch.zeros(2, dtype=torch.float64, device=distributed.device)
        pairs = [part for name in self._names for part in self._sums.get(name, zero)]
        read = distributed.all_reduce_sum_async(*pairs)

        def read_means() -> dict[str, float | None]:
            values = read()
            totals, counts = values[::2], values[1::2]
            return {n: t / c if c else None for n, t, c in zip(self._names, totals, counts, strict=True)}

        return read_means
