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

from harness.errors import Refused
from harness.runtime.telemetry.waiting import METER

# Preparing a large corpus on one rank may take hours while the others wait; training collectives keep their own limit.
_PATIENCE = timedelta(hours=24)


_AT_ONCE = 1 << 13
"""Bytes of a value that are gathered without asking for its size first."""
T = TypeVar("T")


class RefusedByAll(Refused):
    """Raised on every rank alike: one of them need say it."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This rank in the world. `control` is a gloo group for small messages: it never waits for the accelerator.
    `patient` is another, for the one wait that may take hours: while a rank prepares the data.
    """

    rank: int
    world: int
    local_rank: int
    device: torch.device
    control: Any
    patient: Any

    @property
    def is_first(self) -> bool:
        """Rank 0: the one that writes what there is one of."""
        return self.rank == 0

    @property
    def is_first_here(self) -> bool:
        """First of its node: the one that writes files which the others on the node map."""
        return self.local_rank == 0

    def barrier(self) -> None:
        """Wait for all ranks."""
        with METER.waiting():
            dist.barrier(group=self.control)

    def wait_for_hours(self) -> None:
        """Wait for all ranks, however long one of them works."""
        dist.barrier(group=self.patient)

    def gather(self, value: Any) -> list[Any]:
        """`value` of every rank, in rank order, on every rank. One collective for small ones, where torch's own
        `all_gather_object` takes two.
        """
        mine = pickle.dumps(value)
        size = 8 + len(mine)
        sent = torch.zeros(max(_AT_ONCE, size), dtype=torch.uint8)
        sent[:size] = torch.frombuffer(bytearray(len(mine).to_bytes(8, "little") + mine), dtype=torch.uint8)
        rows = self._gathered(sent[:_AT_ONCE])
        sizes = [int.from_bytes(row[:8].tobytes(), "little") for row in rows]
        most = 8 + max(sizes)
        if most > _AT_ONCE:
            sent = torch.nn.functional.pad(sent, (0, max(0, most - len(sent))))
            rest = self._gathered(sent[_AT_ONCE:most].clone())
            rows = [np.concatenate(pair) for pair in zip(rows, rest, strict=True)]
        # What this very program has pickled, from ranks of this very run.
        return [pickle.loads(row[8 : 8 + n].tobytes()) for row, n in zip(rows, sizes, strict=True)]  # noqa: S301

    def _gathered(self, row: torch.Tensor) -> list[np.ndarray]:
        """Equally many bytes of every rank, in rank order."""
        everyone = [torch.empty_like(row) for _ in range(self.world)]
        with METER.waiting():
            dist.all_gather(everyone, row, group=self.control)
        return [one.numpy() for one in everyone]

    def to_first_later(self, values: Sequence[float]) -> Callable[[], list[list[float]]]:
        """As many numbers of every rank, in rank order, on rank 0; nothing on the others. One small collective, on its
        way until it is asked for.
        """
        mine = torch.tensor(values, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self.world)] if self.is_first else None
        with METER.waiting():
            work = dist.gather(mine, everyone, group=self.control, async_op=True)

        def read() -> list[list[float]]:
            with METER.waiting():
                work.wait()
            return [row.tolist() for row in everyone or ()]

        return read

    def any(self, flag: bool) -> bool:
        """True on every rank as soon as it is true on one."""
        tensor = torch.tensor([int(flag)], dtype=torch.int32)
        with METER.waiting():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control)
        return bool(tensor.item())

    def sum(self, *values: float | torch.Tensor) -> list[float]:
        """Sums over the ranks in float64, one for each value, on the training device's own group."""
        return self.sum_later(*values)()

    def sum_later(self, *values: float | torch.Tensor) -> Callable[[], list[float]]:
        """The same, to be asked for later: on a device nothing waits for it until then."""
        parts = [
            v.detach().double().reshape(1).to(self.device) if torch.is_tensor(v) else _double(v, self.device)
            for v in values
        ]
        tensor = torch.cat(parts)
        with METER.waiting():
            dist.all_reduce(tensor)
        return to_host(tensor)

    def together(self, make: Callable[[], T]) -> T:
        """`make()`, unless any rank refuses: then that is raised on all of them."""
        made: list[T] = []
        refused = None
        try:
            made.append(make())
        except Refused as error:
            refused = error
        self.agree(refused)
        return made[0]

    def agree(self, refused: Refused | None) -> None:
        """Raise on every rank what was refused on any of them, so that none is left waiting in a collective."""
        everyone = self.gather(refused.findings if refused else None)
        findings = [f for found in everyone if found for f in found]
        if findings:
            raise RefusedByAll(f for i, f in enumerate(findings) if f not in findings[:i])


def to_host(tensor: torch.Tensor) -> Callable[[], list[float]]:
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


def _double(value: float, device: torch.device) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64, device=device)


def join() -> Ranks:
    """Enter the process group that the launcher has laid out in the environment (RANK, WORLD_SIZE, MASTER_ADDR ...)."""
    accelerator = get_accelerator()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if accelerator.device_name() != "cpu":
        accelerator.set_device(local_rank)
    deepspeed.init_distributed()
    return Ranks(
        rank=dist.get_rank(),
        world=dist.get_world_size(),
        local_rank=local_rank,
        device=torch.device(accelerator.current_device_name()),
        control=dist.new_group(backend="gloo"),
        patient=dist.new_group(backend="gloo", timeout=_PATIENCE),
    )


def leave() -> None:
    """Take the process group down, so that no thread of it is alive when the interpreter ends."""
    if dist.is_initialized():
        dist.destroy_process_group()
