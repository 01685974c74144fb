# SPDX-License-Identifier: Apache-2.0
"""The simulated device as one context: fake tensors, the tracker, the accelerator and a process group without peers.

`native_library.load_native_library` must have run before torch was imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from harness.runtime.simulation.collectives import number_collective
from harness.runtime.simulation.device_events import DeviceObserver
from harness.runtime.simulation.memory_tracker import MemoryTracker
from harness.runtime.simulation.streams import OBSERVERS, current_stream
from harness.runtime.simulation.traffic import is_collective

_aten: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class SimulatedRank:
    """The rank that is simulated, among so many; the others do not exist."""

    rank: int
    world_size: int
    local_rank: int
    ranks_per_host: int


@contextmanager
def simulated_device(rank: SimulatedRank, tracker: MemoryTracker, observers: list[DeviceObserver]) -> Iterator[None]:
    """In this context tensors are fake, and DeepSpeed trains on `cuda:0`. Once a process.

    Raises SimulationUnavailableError where something that is replaced does not exist.
    """
    from deepspeed.accelerator import set_accelerator

    from harness.runtime.simulation.shims import install_shims
    from harness.runtime.simulation.simulated_accelerator import SimulatedAccelerator

    _set_environment(rank)
    set_accelerator(SimulatedAccelerator(tracker))
    _init_fake_group(rank)
    install_shims(tracker)
    OBSERVERS[:] = observers
    tracker.on_freed = _notify_freed
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), _DispatchMode(tracker):
            yield
    finally:
        tracker.finish()
        OBSERVERS.clear()


def _set_environment(rank: SimulatedRank) -> None:
    os.environ |= {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "WORLD_SIZE": str(rank.world_size),
        "LOCAL_SIZE": str(rank.ranks_per_host),
        "LOCAL_WORLD_SIZE": str(rank.ranks_per_host),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29999",  # nothing listens or connects
    }


def _init_fake_group(rank: SimulatedRank) -> None:
    import torch.distributed._tools.fake_collectives  # noqa: F401 - registers the shapes of collectives
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank.rank, world_size=rank.world_size, store=FakeStore())
    deepspeed.init_distributed()


def _notify_freed(key: int) -> None:
    for observer in OBSERVERS:
        observer.on_freed(key)


class _DispatchMode(TorchDispatchMode):
    """Sees every operator: counts what it allocates, answers what would need values, and calls the observers."""

    def __init__(self, tracker: MemoryTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracker = tracker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _VALUES:
            self._notify(func, args, kwargs, None)
            return _VALUES[func](args)
        if func is _aten.record_stream.default:
            return None
        pinned = kwargs.pop("pin_memory", False)
        out = func(*args, **kwargs)
        self._count(func, args, kwargs, out, pinned=bool(pinned))
        self._notify(func, args, kwargs, out)
        return out

    def _count(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any, *, pinned: bool) -> None:
        # A copy to the host that does not block lands in page-locked memory of torch's own.
        to_pinned = func is _aten._to_copy.default and kwargs.get("non_blocking") and args[0].device.type == "cuda"
        for tensor in tree_iter(out):
            if not isinstance(tensor, FakeTensor):
                continue
            storage, device = tensor.untyped_storage(), tensor.fake_device.type
            is_pinned = device == "cpu" and (pinned or bool(to_pinned))
            if is_pinned:
                self._tracker.pinned.add(storage)
            self._tracker.add(storage, device, func._schema.name, pinned=is_pinned)

    def _notify(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        if not OBSERVERS:
            return
        stream = current_stream().name
        if is_collective(func):
            collective = number_collective(out)
            for observer in OBSERVERS:
                observer.on_collective(func, args, out, stream, collective)
            return
        for observer in OBSERVERS:
            observer.on_op(func, args, kwargs, out, stream)


def _first_value(args: Any) -> Any:
    """0, in the type of the tensor: no overflow, no norm; True where it was asked whether a tensor is finite."""
    dtype = args[0].dtype
    if dtype is torch.bool:
        return getattr(args[0], "is_simulated_true", False)
    return 0.0 if dtype.is_floating_point else 0


_VALUES: dict[Any, Any] = {
    _aten._local_scalar_dense.default: _first_value,
    _aten.equal.default: lambda _: True,
    _aten.allclose.default: lambda _: True,
}
"""Operators whose result is a value of a tensor."""
