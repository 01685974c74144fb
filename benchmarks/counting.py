# SPDX-License-Identifier: Apache-2.0
"""Counters of a training step: bytes moved, Python calls, bytes allocated. No times; a helper, not a benchmark."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

_UNITS = {
    "all_reduce": (2, 0, "tensor"),
    "reduce": (1, 0, "tensor"),
    "broadcast": (1, 0, "tensor"),
    "all_gather_into_tensor": (1, 0, "output_tensor"),
    "reduce_scatter_tensor": (1, 1, "input"),
}
"""Collective -> times that a ring sends the payload x (N - 1) / N, and where the payload is among the arguments."""
_MOVED = {"bytes": 0.0, "calls": 0.0}


def watch_the_wire() -> None:
    """Stand before torch's collectives. Before DeepSpeed's start, which keeps some of them."""
    import torch.distributed as dist

    def counted(name: str) -> Callable[..., Any]:
        (unit, place, word), call = _UNITS[name], getattr(dist, name)

        def counting(*args: Any, **named: Any) -> Any:
            payload, world = args[place] if len(args) > place else named[word], dist.get_world_size()
            _MOVED["bytes"] += unit * payload.numel() * payload.element_size() * (world - 1) / world
            _MOVED["calls"] += 1
            _MOVED[name] = _MOVED.get(name, 0) + 1
            return call(*args, **named)

        return counting

    for name in _UNITS:
        setattr(dist, name, counted(name))


@contextmanager
def wire() -> Iterator[dict[str, float]]:
    """Bytes that a rank sends on average while this lasts, and how many collectives, in all and by name."""
    _MOVED.clear()
    _MOVED.update(bytes=0.0, calls=0.0)
    yield _MOVED


def calls_of(step: Callable[[], Any]) -> int:
    """Python functions that are called in a step."""
    count = 0

    def see(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(see)
    step()
    sys.setprofile(None)
    return count


@contextmanager
def peak() -> Iterator[dict[str, int]]:
    """Most bytes at once of the storages that are allocated while this lasts."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    held = {"now": 0, "peak": 0}
    seen: set[int] = set()

    def gone(key: int, size: int) -> None:
        held["now"] -= size
        seen.discard(key)

    class Follow(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
            out = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor):
                    storage = tensor.untyped_storage()
                    key = storage._cdata
                    if key not in seen and key not in given:
                        seen.add(key)
                        size = storage.nbytes()
                        held["now"] += size
                        held["peak"] = max(held["peak"], held["now"])
                        weakref.finalize(storage, gone, key, size)
            return out

    with Follow():
        yield held


@contextmanager
def gathers(parameters: Iterable[Any] = ()) -> Iterator[dict[str, int]]:
    """Elements that ZeRO-3 gathers while this lasts: `waited` where a module needs them already, `ahead` before one
    does; `most`: of these parameters, gathered or on their way at once. By DeepSpeed's own events.
    """
    import torch.distributed as dist
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator as Coordinator
    from deepspeed.runtime.zero.partitioned_param_profiler import PartitionedParameterProfiler as Profiler

    needed = (Coordinator.FORWARD_FETCH_SUBMIT, Coordinator.BACKWARD_FETCH_SUBMIT)
    early = (Coordinator.FORWARD_PREFETCH_SUBMIT, Coordinator.BACKWARD_PREFETCH_SUBMIT)
    found, followed, stop = {"waited": 0, "ahead": 0, "most": 0}, list(parameters), Profiler.stop_event

    def see(self: Any, name: str, elements: int) -> None:
        if name in needed:
            found["waited"] += elements * dist.get_world_size()  # of a rank's part
        elif name in early:
            found["ahead"] += elements
        if name in (*needed, *early):
            live = sum(p.ds_numel for p in followed if p.ds_status != ZeroParamStatus.NOT_AVAILABLE)
            found["most"] = max(found["most"], live)
        stop(self, name, elements)

    Profiler.stop_event = see
    try:
        yield found
    finally:
        Profiler.stop_event = stop
