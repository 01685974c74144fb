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
    """Engines that are built in this context hold their gradients once, where all sub-groups are stepped by the CPU
    and not by Muon, ZenFlow or SuperOffload.
    """
    optimizer_class = DeepSpeedZeroOptimizer_Stage3
    initialize = optimizer_class.initialize_optimizer_states

    def without_gradients(zero: Any) -> None:
        if not _is_supported(zero):
            initialize(zero)
            return
        zero.offload_optimizer = False  # then it allocates no gradients; it reads the flag for nothing else
        try:
            initialize(zero)
        finally:
            zero.offload_optimizer = True
        zero.holds_gradients_once = True

    if enabled:
        optimizer_class.initialize_optimizer_states = without_gradients
    try:
        yield
    finally:
        optimizer_class.initialize_optimizer_states = initialize


def cast_grads_on_step(engine: Any) -> None:
    """The other half of the patch, on an engine that is built."""
    zero = engine.optimizer
    if not getattr(zero, "holds_gradients_once", False):
        return
    masters = zero.fp32_partitioned_groups_flat
    sizes = [int(master.numel()) for master in masters]
    starts = list(accumulate(sizes, initial=0))
    flat: torch.Tensor = zero.grad_partitions_flat_buffer
    same_dtype = flat.dtype == masters[0].dtype
    cast_buffer = flat if same_dtype else torch.empty(max(sizes), dtype=masters[0].dtype)
    zero.gradients_of_a_sub_group = None if same_dtype else cast_buffer
    release = zero._release_sub_group

    def at_boundary(parameter: Any, buffer: torch.Tensor, *_: Any) -> None:
        zero.norm_for_param_grads[zero.get_param_id(parameter)] = zero._constant_buffered_norm2(buffer)

    def prepare(sub_group: int, _timers: Any) -> None:
        view = flat.narrow(0, starts[sub_group], sizes[sub_group])
        masters[sub_group].grad = view if same_dtype else cast_buffer.narrow(0, 0, sizes[sub_group]).copy_(view)

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
