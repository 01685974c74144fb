# SPDX-License-Identifier: Apache-2.0
"""The collectives of the gradient witness, which do nothing without a process group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


class RankAgreement:
    """Sums and maxima over the ranks of `group`, and objects of all ranks. `time_call` calls each collective: it takes
    the function and its arguments.
    """

    def __init__(
        self,
        group: Any,
        device: torch.device,
        dtype: torch.dtype,
        time_call: Callable[..., Any] | None = None,
    ) -> None:
        self._group, self._device, self._dtype = group, device, dtype
        self._time_call = time_call or _call
        self.is_parallel = dist.is_available() and dist.is_initialized()

    @property
    def rank(self) -> int:
        """Of all ranks."""
        return dist.get_rank() if self.is_parallel else 0

    @property
    def num_ranks(self) -> int:
        """Of the group."""
        return dist.get_world_size(self._group) if self.is_parallel else 1

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Over the group; fp64 on the CPU."""
        return self._reduce(values, dist.ReduceOp.SUM, self._group)

    def maximum(self, values: list[float], *, everywhere: bool = False) -> list[float]:
        """Over the group, or over all ranks."""
        numbers = torch.tensor(values, dtype=torch.float64)
        return self._reduce(numbers, dist.ReduceOp.MAX, None if everywhere else self._group).tolist()

    def gather(self, value: Any) -> list[Any]:
        """The objects of all ranks."""
        if not self.is_parallel:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        self._time_call(dist.all_gather_object, values, value)
        return values

    def _reduce(self, values: torch.Tensor, operation: Any, group: Any) -> torch.Tensor:
        if not self.is_parallel:
            return values.detach().cpu().double()
        shared = values.detach().to(self._device, self._dtype, copy=True)
        self._time_call(dist.all_reduce, shared, op=operation, group=group)
        return shared.cpu().double()


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
