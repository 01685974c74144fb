# SPDX-License-Identifier: Apache-2.0
"""The process group of the loop where the other ranks do not exist: each would say what this one says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from harness.runtime.distributed import Distributed
from harness.runtime.simulation.device import SimulatedRank

T = TypeVar("T")


class SimulatedDistributed(Distributed):
    """`Distributed` without messages."""

    def barrier(self) -> None:
        """Nobody is waited for."""

    def long_barrier(self) -> None:
        """Nobody is waited for."""

    def all_gather_object(self, value: T) -> list[T]:
        """The value, once for each rank."""
        return [value] * self.world_size

    def gather_to_main_async(self, values: Sequence[float]) -> Callable[[], list[list[float]]]:
        """The values, once for each rank."""
        rows = [list(values)] * self.world_size if self.is_main_process else []
        return lambda: rows

    def any_rank(self, flag: bool) -> bool:
        """The flag."""
        return flag


def simulated_distributed(rank: SimulatedRank) -> SimulatedDistributed:
    """This rank on `cuda:0`."""
    group = cast("dist.ProcessGroup", dist.group.WORLD)
    return SimulatedDistributed(
        rank.rank,
        rank.world_size,
        rank.local_rank,
        torch.device("cuda:0"),
        control_group=group,
    )
