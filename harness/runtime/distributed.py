"""The process group: who this rank is, and how the ranks agree on findings, flags and numbers.

DeepSpeed's own collectives are not here; these are the few that the loop itself needs.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from harness.errors import UserError
from harness.runtime.telemetry.comm_timer import COMM_TIMER

# Preparing a large corpus on one rank may take hours while the others wait; training collectives keep their own limit.
_LONG_TIMEOUT = timedelta(hours=24)


_SINGLE_GATHER_BYTES = 1 << 13
"""Bytes of a value that are gathered without asking for its size first."""
T = TypeVar("T")


class AgreedUserError(UserError):
    """Raised on every rank alike: one of them need say it."""


@dataclass(frozen=True, slots=True)
class Distributed:
    """This rank in the world. `control` is a gloo group for small messages: it never waits for the accelerator.
    `patient` is another, for the one wait that may take hours: while a rank prepares the data.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    control_group: Any
    long_timeout_group: Any

    @property
    def is_main_process(self) -> bool:
        """Rank 0: the one that writes what there is one of."""
        return self.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """First of its node: the one that writes files which the others on the node map."""
        return self.local_rank == 0

    def barrier(self) -> None:
        """Wait for all ranks."""
        with COMM_TIMER.host_wait():
            dist.barrier(group=self.control_group)

    def long_barrier(self) -> None:
        """Wait for all ranks, however long one of them works."""
        dist.barrier(group=self.long_timeout_group)

    def all_gather_object(self, value: Any) -> list[Any]:
        """`value` of every rank, in rank order, on every rank. One collective for small ones, where torch's own
        `all_gather_object` takes two.
        """
        mine = pickle.dumps(value)
        size = 8 + len(mine)
        sent = torch.zeros(max(_SINGLE_GATHER_BYTES, size), dtype=torch.uint8)
        sent[:size] = torch.frombuffer(bytearray(len(mine).to_bytes(8, "little") + mine), dtype=torch.uint8)
        rows = self._all_gather_bytes(sent[:_SINGLE_GATHER_BYTES])
        sizes = [int.from_bytes(row[:8].tobytes(), "little") for row in rows]
        most = 8 + max(sizes)
        if most > _SINGLE_GATHER_BYTES:
            sent = torch.nn.functional.pad(sent, (0, max(0, most - len(sent))))
            rest = self._all_gather_bytes(sent[_SINGLE_GATHER_BYTES:most].clone())
            rows = [np.concatenate(pair) for pair in zip(rows, rest, strict=True)]
        # What this very program has pickled, from ranks of this very run.
        return [pickle.loads(row[8 : 8 + n].tobytes()) for row, n in zip(rows, sizes, strict=True)]  # noqa: S301

    def _all_gather_bytes(self, row: torch.Tensor) -> list[np.ndarray]:
        """Equally many bytes of every rank, in rank order."""
        everyone = [torch.empty_like(row) for _ in range(self.world_size)]
        with COMM_TIMER.host_wait():
            dist.all_gather(everyone, row, group=self.control_group)
        return [one.numpy() for one in everyone]

    def gather_to_main_async(self, values: Sequence[float]) -> Callable[[], list[list[float]]]:
        """As many numbers of every rank, in rank order, on rank 0; nothing on the others. One small collective, on its
        way until it is asked for.
        """
        mine = torch.tensor(values, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)] if self.is_main_process else None
        with COMM_TIMER.host_wait():
            work = dist.gather(mine, everyone, group=self.control_group, async_op=True)

        def read() -> list[list[float]]:
            with COMM_TIMER.host_wait():
                work.wait()
            return [row.tolist() for row in everyone or ()]

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
        """The same, to be asked for later: on a device nothing waits for it until then."""
        parts = [
            v.detach().double().reshape(1).to(self.device) if torch.is_tensor(v) else _double_tensor(v, self.device)
            for v in values
        ]
        tensor = torch.cat(parts)
        with COMM_TIMER.host_wait():
            dist.all_reduce(tensor)
        return copy_to_host_async(tensor)

    def call_or_fail_everywhere(self, function: Callable[[], T]) -> T:
        """`make()`, unless any rank refuses: then that is raised on all of them."""
        made: list[T] = []
        refused = None
        try:
            made.append(function())
        except UserError as error:
            refused = error
        self.raise_everywhere(refused)
        return made[0]

    def raise_everywhere(self, error: UserError | None) -> None:
        """Raise on every rank what was refused on any of them, so that none is left waiting in a collective."""
        everyone = self.all_gather_object(error.findings if error else None)
        findings = [f for found in everyone if found for f in found]
        if findings:
            raise AgreedUserError(f for i, f in enumerate(findings) if f not in findings[:i])


def copy_to_host_async(tensor: torch.Tensor) -> Callable[[], list[float]]:
    """The values of a vector, to be asked for once the device has passed this place: the copy is on its way."""
    if tensor.device.type == "cpu":
        values = [float(x) for x in tensor.tolist()]
        return lambda: values
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    passed = get_accelerator().Event()
    passed.record()

    def read() -> list[float]:
        passed.synchronize()
        return [float(x) for x in copy.tolist()]

    return read


def _double_tensor(value: float, device: torch.device) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64, device=device)


def init_process_group() -> Distributed:
    """Enter the process group that the launcher has laid out in the environment (RANK, WORLD_SIZE, MASTER_ADDR ...)."""
    accelerator = get_accelerator()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if accelerator.device_name() != "cpu":
        accelerator.set_device(local_rank)
    deepspeed.init_distributed()
    return Distributed(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=local_rank,
        device=torch.device(accelerator.current_device_name()),
        control_group=dist.new_group(backend="gloo"),
        long_timeout_group=dist.new_group(backend="gloo", timeout=_LONG_TIMEOUT),
    )


def destroy_process_group() -> None:
    """Take the process group down, so that no thread of it is alive when the interpreter ends."""
    if dist.is_initialized():
        dist.destroy_process_group()
