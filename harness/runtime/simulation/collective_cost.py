# SPDX-License-Identifier: Apache-2.0
"""Seconds of one collective by the planner's rates of links: a ring over its group, or messages to peers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_iter

from harness.plan.simulation.clock_rates import ClockRates
from harness.runtime.simulation.collectives import find_group, is_async_collective
from harness.runtime.simulation.traffic import collective_bytes, is_exchange, kind_of_collective

_REDUCTIONS = ("reduce-scatter", "all-reduce", "reduce")
_MESSAGES = ("send", "receive", "barrier")
_RINGS = {"all-reduce": 2.0}
"""Times that a ring carries the payload; once for all others."""


class CollectiveWork(NamedTuple):
    """`kind`: `all-gather`, `reduce` or `other collectives`; `wire`: the links that it shares with others. `issue`:
    seconds of the host. `is_on_host`: of host tensors, which take no time here.
    """

    kind: str
    wire: str
    group: str
    seconds: float
    issue: float
    is_async: bool
    is_on_host: bool


class CollectiveCost:
    """Knows the ranks of each group."""

    def __init__(self, rates: ClockRates) -> None:
        self._rates = rates
        self._groups: dict[str, tuple[int, int]] = {}

    def of(self, func: Any, args: Any) -> CollectiveWork:
        """The work of a collective that is called with these arguments."""
        kind, num_bytes = kind_of_collective(func), collective_bytes(args)
        group = find_group(args)
        if is_exchange(func):  # its input has a row for each rank of the group, which are neighbours
            name, ranks, stride = f"sequence {args[1]}", int(args[0].shape[0]), 1
        else:
            name = "" if group is None else str(group.group_name)
            ranks, stride = self._ranks_of(name, group)
        tensors = [t for t in tree_iter(args) if isinstance(t, FakeTensor)]
        issue = self._rates.gather_issue if kind == "all-gather" else 0.0
        issue = self._rates.reduction_issue if kind in _REDUCTIONS else issue
        return CollectiveWork(
            kind if kind == "all-gather" else "reduce" if kind in _REDUCTIONS else "other collectives",
            "network" if self._rates.links.leaves_host(ranks, stride) else "links",
            name,
            self._seconds(kind, num_bytes, ranks, stride),
            issue * num_bytes,
            is_async_collective(func, args),
            bool(tensors) and all(t.fake_device.type == "cpu" for t in tensors),
        )

    def _seconds(self, kind: str, num_bytes: int, ranks: int, stride: int) -> float:
        rates = self._rates
        if ranks < 2:
            return 0.0
        if kind in _MESSAGES:
            return rates.collective_scale * (num_bytes / rates.links.peer_to_peer(ranks) + rates.message)
        bandwidth = rates.links.peer_to_peer(ranks) if kind == "all-to-all" else rates.links.ring(ranks, stride)
        payload = num_bytes * _RINGS.get(kind, 1.0) * (ranks - 1) / ranks
        return rates.collective_scale * payload / bandwidth

    def _ranks_of(self, name: str, group: Any) -> tuple[int, int]:
        """The number of ranks, and the distance from one to the next; all ranks where no group is named."""
        found = self._groups.get(name)
        if found is None:
            ranks = list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)
            found = self._groups[name] = len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 1
        return found
