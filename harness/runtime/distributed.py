# SPDX-License-Identifier: Apache-2.0
"""The process group: this rank's place, and the few collectives of the loop itself, for findings, flags and numbers.

DeepSpeed calls its own collectives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from harness.errors import UserError
from harness.planted_files import find_foreign_owner
from harness.runtime import object_gather
from harness.runtime.comm_timer import COMM_TIMER

_CONTROL_TIMEOUT = timedelta(hours=24)
"""Longer than any wait for a rank that prepares data, writes its part of a checkpoint or reads it. A run that hangs is
ended by `launch.hang_timeout_seconds`; gloo's own 30 minutes would end a slow save. Training collectives keep theirs.
"""

T = TypeVar("T")


class AgreedUserError(UserError):
    """Raised on every rank, and printed by the main process alone."""


@dataclass(frozen=True, slots=True)
class Distributed:
    """This rank in the world. `control_group` is a gloo group for small messages: it never waits for the accelerator,
    and for a day for a rank.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    control_group: dist.ProcessGroup

    @property
    def is_main_process(self) -> bool:
        """Rank 0: it writes the files that a run has once."""
        return self.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """First of its node: it writes the files that the others on the node map."""
        return self.local_rank == 0

    def barrier(self) -> None:
        """Wait for all ranks."""
        with COMM_TIMER.host_wait():
            dist.barrier(group=self.control_group)

    def long_barrier(self) -> None:
        """Wait for a rank that works for hours; not counted as communication."""
        dist.barrier(group=self.control_group)

    def all_gather_object(self, value: T) -> list[T]:
        """`value` of every rank, in rank order, on every rank. Raises TypeError for a value of a type that ranks do not
        send (`runtime/object_gather.py`).
        """
        return object_gather.all_gather_object(value, self.control_group, COMM_TIMER.host_wait)

    def gather_to_main_async(self, values: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Gather a fixed number of floats to rank 0 without waiting. The returned function waits, and returns the rows
        in rank order on rank 0, an empty list on the others.
        """
        tensor = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(tensor) for _ in range(self.world_size)] if self.is_main_process else None
        with COMM_TIMER.host_wait():
            work = dist.gather(tensor, rows, group=self.control_group, async_op=True)

        def read() -> list[list[float]]:
            with COMM_TIMER.host_wait():
                work.wait()
            return [row.tolist() for row in rows or ()]

        return read

    def any_rank(self, flag: bool) -> bool:
        """True on every rank as soon as it is true on one."""
        tensor = torch.tensor([int(flag)], dtype=torch.int32)
        with COMM_TIMER.host_wait():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control_group)
        return bool(tensor.item())

    def all_reduce_sum(self, *values: float | torch.Tensor) -> list[float]:
        """Sums over the ranks in float64, one for each value, on the training device's own group."""
        return self.all_reduce_sum_async(*values)()

    def all_reduce_sum_async(self, *values: float | torch.Tensor) -> Callable[[], list[float]]:
        """The same without waiting: the returned function waits for the device and reads the sums."""
        scalars = [
            v.detach().double().reshape(1).to(self.device) if torch.is_tensor(v) else _double_tensor(v, self.device)
            for v in values
        ]
        tensor = torch.cat(scalars)
        with COMM_TIMER.host_wait():
            dist.all_reduce(tensor)
        return copy_to_host_async(tensor)

    def call_or_fail_everywhere(self, function: Callable[[], T]) -> T:
        """`function()`, unless it raises UserError on any rank: then all ranks raise it."""
        results: list[T] = []
        user_error = None
        try:
            results.append(function())
        except UserError as error:
            user_error = error
        self.raise_everywhere(user_error)
        return results[0]

    def raise_everywhere(self, error: UserError | None) -> None:
        """Raise on every rank the user errors of all ranks, so that none is left waiting in a collective."""
        findings_by_rank = self.all_gather_object(error.findings if error else None)
        findings = [f for rank_findings in findings_by_rank if rank_findings for f in rank_findings]
        if findings:
            raise AgreedUserError(f for i, f in enumerate(findings) if f not in findings[:i])


def copy_to_host_async(tensor: torch.Tensor) -> Callable[[], list[float]]:
    """Start the copy of a vector to the host; the returned function waits for it and reads the values."""
    if tensor.device.type == "cpu":
        values = [float(x) for x in tensor.tolist()]
        return lambda: values
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    event = get_accelerator().Event()
    event.record()

    def read() -> list[float]:
        event.synchronize()
        return [float(x) for x in copy.tolist()]

    return read


def _double_tensor(value: float, device: torch.device) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64, device=device)


def init_process_group() -> Distributed:
    """Join the process group that the environment describes (RANK, WORLD_SIZE, MASTER_ADDR ...).

    Raises UserError (EN019) where another user made the shared memory for it.
    """
    accelerator = get_accelerator()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if accelerator.device_name() != "cpu":
        accelerator.set_device(local_rank)
    _verify_shared_memory(Path("/dev/shm"))  # noqa: S108  (the place that DeepSpeed uses)
    deepspeed.init_distributed()
    return Distributed(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=local_rank,
        device=torch.device(accelerator.current_device_name()),
        control_group=dist.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT),
    )


def _verify_shared_memory(folder: Path) -> None:
    """Raises UserError (EN019) where another user made a buffer by the name that DeepSpeed's CPU all-reduce takes for
    this run: `csrc/cpu/comm/shm.cpp` opens what is there.
    """
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{os.environ.get('MASTER_ADDR')}_{os.environ.get('MASTER_PORT')}_*"
    planted = next((found for path in sorted(folder.glob(name)) if (found := find_foreign_owner(path))), None)
    if planted is not None:
        effect = "the ranks would have exchanged their gradients in memory that this user can read and change"
        fix = "start again with another `launch.master_port`"
        raise UserError([planted.to_finding("EN019", effect, fix, key="launch.master_port")])


def destroy_process_group() -> None:
    """Destroy the process group; the threads of groups that DeepSpeed still refers to stay."""
    if dist.is_initialized():
        dist.destroy_process_group()


def divide_over_ranks(loads: Iterable[tuple[str, int]], world_size: int) -> list[list[str]]:
    """Names by rank. `loads`: names with their load, the largest first; each goes to the rank with the least so far."""
    totals = [0] * world_size
    shares: list[list[str]] = [[] for _ in range(world_size)]
    for name, load in loads:
        rank = totals.index(min(totals))
        totals[rank] += load
        shares[rank].append(name)
    return shares
