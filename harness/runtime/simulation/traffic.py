# SPDX-License-Identifier: Apache-2.0
"""Counts what moves: collectives, copies between host and device, and parameters that are gathered on demand or ahead.

Bytes are those of a rank: of the gathered result, of the reduced input, of what is broadcast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_iter

from harness.runtime.simulation.device_events import DeviceObserver
from harness.runtime.simulation.memory_tracker import MemoryTracker, calling_line

_aten: Any = torch.ops.aten
_KINDS = (
    ("allgather", "all-gather"),
    ("reduce_scatter", "reduce-scatter"),
    ("allreduce", "all-reduce"),
    ("alltoall", "all-to-all"),
    ("all_to_all", "all-to-all"),
    ("broadcast", "broadcast"),
    ("send", "send"),
    ("recv", "receive"),
    ("barrier", "barrier"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
)

_EXCHANGE = "deepspeed::dim_zero_all_to_all"
"""Ulysses' exchange (deepspeed/sequence/layer.py): the collective inside it passes no dispatcher."""


def is_collective(func: Any) -> bool:
    """Is this operator a collective?"""
    return bool(func.namespace == "c10d" or is_exchange(func))


def is_exchange(func: Any) -> bool:
    """Is this operator Ulysses' exchange?"""
    return bool(func._schema.name == _EXCHANGE)


def kind_of_collective(func: Any) -> str:
    """`all-gather`, `reduce-scatter` and so on; the operator's own name for one that is not known."""
    name = str(func._schema.name.split("::")[1])
    return next((kind for part, kind in _KINDS if part in name), name)


def collective_bytes(args: Any) -> int:
    """Bytes of a rank: of the gathered result, of the reduced input, of what is broadcast."""
    return max((_bytes_of(value) for value in args[:2]), default=0)


class Traffic(DeviceObserver):
    """`collectives` and `copies` by (phase, kind): how many, and bytes. `order`: every collective in turn, and
    `callers`, the line that called each.
    """

    def __init__(self, tracker: MemoryTracker) -> None:
        self._tracker = tracker
        self.collectives: Counter[tuple[str, str]] = Counter()
        self.collective_bytes: Counter[tuple[str, str]] = Counter()
        self.copies: Counter[tuple[str, str]] = Counter()
        self.copy_bytes: Counter[tuple[str, str]] = Counter()
        self.order: list[tuple[str, int]] = []
        self.callers: list[str] = []

    def on_collective(self, func: Any, args: Any, out: Any, stream: str, collective: int) -> None:  # noqa: ARG002
        """Count it by kind."""
        kind, size = kind_of_collective(func), collective_bytes(args)
        key = (self._tracker.phase, kind)
        self.collectives[key] += 1
        self.collective_bytes[key] += size
        self.order.append((kind, size))
        self.callers.append(calling_line() or "autograd")

    def on_op(self, func: Any, args: Any, kwargs: Any, out: Any, stream: str) -> None:  # noqa: ARG002
        """Count copies between host and device."""
        if func is _aten.copy_.default:
            target, source = args[0], args[1]
        elif func is _aten._to_copy.default:
            target, source = out, args[0]
        else:
            return
        if source.device.type == target.device.type or target.numel() < 2:
            return
        direction = "host to device" if target.device.type == "cuda" else "device to host"
        key = (self._tracker.phase, direction)
        self.copies[key] += 1
        self.copy_bytes[key] += target.numel() * source.element_size()


def _bytes_of(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tree_iter(value) if isinstance(t, torch.Tensor))


class GatheredParameters:
    """Elements that ZeRO-3 gathered since the layer at hand needed them (`on_demand`), or for a later one (`ahead`)."""

    def __init__(self) -> None:
        self.on_demand = self.ahead = 0


@contextmanager
def count_gathers(tracker: MemoryTracker, phases: dict[str, GatheredParameters]) -> Iterator[None]:
    """Count every gather of DeepSpeed's coordinator in this context, by phase.

    `_fetch_sub_module_impl` (runtime/zero/partitioned_param_coordinator.py) gathers the parameters of its layer
    first, then those of later ones, by the same method.
    """
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator, iter_params
    from deepspeed.utils import z3_leaf_module

    fetch = PartitionedParameterCoordinator._fetch_sub_module_impl
    gather_name = "_PartitionedParameterCoordinator__all_gather_params"
    gather = getattr(PartitionedParameterCoordinator, gather_name)
    needed: list[set[int]] = [set()]

    def counted_fetch(self: Any, current_submodule: Any, *args: Any, **kwargs: Any) -> Any:
        needed.append({id(p) for p in iter_params(current_submodule, recurse=z3_leaf_module(current_submodule))})
        try:
            return fetch(self, current_submodule, *args, **kwargs)
        finally:
            needed.pop()

    def counted_gather(self: Any, params: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        params = set(params)
        counts = phases.setdefault(tracker.phase, GatheredParameters())
        for parameter in params:
            if parameter.ds_status == ZeroParamStatus.NOT_AVAILABLE:
                if id(parameter) in needed[-1]:
                    counts.on_demand += parameter.ds_numel
                else:
                    counts.ahead += parameter.ds_numel
        return gather(self, params, *args, **kwargs)

    with (
        patch.object(PartitionedParameterCoordinator, "_fetch_sub_module_impl", counted_fetch),
        patch.object(PartitionedParameterCoordinator, gather_name, counted_gather),
    ):
        yield
