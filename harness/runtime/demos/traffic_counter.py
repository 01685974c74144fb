# SPDX-License-Identifier: Apache-2.0
"""Counts the collectives of this rank: calls, bytes of their tensors, and seconds until they returned."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_COUNTED = {
    "all_reduce": 0,
    "reduce": 0,
    "broadcast": 0,
    "all_gather_into_tensor": 0,
    "reduce_scatter_tensor": 1,
    "all_to_all_single": 0,
    "send": 0,
}
"""Function of `torch.distributed` -> the argument whose bytes are the whole tensor."""


@dataclass
class Count:
    """Calls, bytes of the whole tensors, and seconds in the calls of one collective."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


class TrafficCounter:
    """Stands before the functions of `torch.distributed` from its creation on: create it before deepspeed is imported,
    which binds some of them. It changes no call.
    """

    def __init__(self) -> None:
        self.counts: dict[str, Count] = defaultdict(Count)
        for name, argument in _COUNTED.items():
            setattr(dist, name, self._counting(name, getattr(dist, name), argument))

    def _counting(self, name: str, call: Callable[..., Any], argument: int) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            tensor = args[argument] if len(args) > argument else next(iter(kwargs.values()))
            count, start = self.counts[name], time.perf_counter()
            result = call(*args, **kwargs)
            if isinstance(tensor, torch.Tensor):
                count.bytes += tensor.numel() * tensor.element_size()
            count.calls += 1
            count.seconds += time.perf_counter() - start
            return result

        return counted

    def reset(self) -> None:
        """Forget what was counted, such as what an engine sends while it is built."""
        self.counts.clear()

    def lines(self) -> list[str]:
        """One line for each collective that was called, with what a ring of these ranks sends for it."""
        share = 1 - 1 / dist.get_world_size()
        parts = {"all_reduce": 2 * share, "broadcast": 1, "reduce": 1, "send": 1}
        return [
            f"  {name:<24} {count.calls:>4} calls {count.bytes:>12,} bytes,"
            f" {round(count.bytes * parts.get(name, share)):,} sent by a rank (ring)"
            for name, count in sorted(self.counts.items())
            if count.calls
        ]
