"""Gradients that are held once where ZeRO-3's optimizer is on the CPU.

DeepSpeed 0.19.8 has the gradients of a rank's partition in host memory (`grad_partitions_flat_buffer`, as wide as the
parameters) and copies them to page-locked fp32 tensors besides, one for every sub-group, which wait for the step: 4
bytes a parameter, and what rounding to powers of two adds. Here each sub-group's are cast when it is stepped, into one
buffer that is as large as the largest. The numbers are the same, but for a parameter that got no gradient: DeepSpeed
gives it its last one again, here it is stepped with none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3


@contextmanager
def skip_cpu_grad_copies(enabled: bool) -> Iterator[None]:
    """Engines that are built meanwhile hold their gradients so, where they can: all sub-groups stepped by the CPU, by
    no Muon, ZenFlow or SuperOffload.
    """
    kind = DeepSpeedZeroOptimizer_Stage3
    initialize = kind.initialize_optimizer_states

    def without_gradients(zero: Any) -> None:
        if not _is_supported(zero):
            initialize(zero)
            return
        zero.offload_optimizer = False  # then nothing is left behind for gradients; it looks at it for nothing else
        try:
            initialize(zero)
        finally:
            zero.offload_optimizer = True
        zero.holds_gradients_once = True

    if enabled:
        kind.initialize_optimizer_states = without_gradients
    try:
        yield
    finally:
        kind.initialize_optimizer_states = initialize


def cast_grads_on_step(engine: Any) -> None:
    """The other half, once the engine is there."""
    zero = engine.optimizer
    if not getattr(zero, "holds_gradients_once", False):
        return
    masters = zero.fp32_partitioned_groups_flat
    sizes = [int(master.numel()) for master in masters]
    starts = list(accumulate(sizes, initial=0))
    flat: torch.Tensor = zero.grad_partitions_flat_buffer
    same = flat.dtype == masters[0].dtype
    wide = flat if same else torch.empty(max(sizes), dtype=masters[0].dtype)
    zero.gradients_of_a_sub_group = None if same else wide
    release = zero._release_sub_group

    def at_boundary(parameter: Any, buffer: torch.Tensor, *_: Any) -> None:
        zero.norm_for_param_grads[zero.get_param_id(parameter)] = zero._constant_buffered_norm2(buffer)

    def prepare(sub_group: int, _timers: Any) -> None:
        view = flat.narrow(0, starts[sub_group], sizes[sub_group])
        masters[sub_group].grad = view if same else wide.narrow(0, 0, sizes[sub_group]).copy_(view)

    def forget(sub_group: int, timers: Any) -> None:
        release(sub_group, timers)
        masters[sub_group].grad = None
        flat.narrow(0, starts[sub_group], sizes[sub_group]).zero_()

    zero._offload_grad_partition_at_boundary = at_boundary
    zero._prepare_sub_group = prepare
    zero._release_sub_group = forget


def _is_supported(zero: Any) -> bool:
    devices = getattr(zero, "subgroup_to_device", {}).values()
    return (
        type(zero) is DeepSpeedZeroOptimizer_Stage3
        and zero.offload_optimizer
        and not zero.swap_optimizer
        and not getattr(zero, "use_muon", False)
        and not getattr(zero, "zenflow", False)
        and all(device == "cpu" for device in devices)
    )
