# SPDX-License-Identifier: Apache-2.0
"""Holds gradients once where ZeRO-3's optimizer is on the CPU.

Upstream: The gradients of a rank's partition are in host memory (`grad_partitions_flat_buffer`, in the dtype of the
parameters). At the end of accumulation they are copied to page-locked fp32 tensors, one for each sub-group, which wait
for the step: 4 bytes a parameter over all ranks, plus rounding to powers of two.

Patch: Each sub-group's gradients are cast when it is stepped, into one buffer of the size of the largest sub-group. The
steps are the same to the bit, except for a parameter that got no gradient: DeepSpeed uses its previous gradient again,
the patch steps it without one. Of such parameters alone the gradient is set to zero, since a first micro-batch writes
over the others'. Runs with a plug-in are not patched, since it may read gradients through DeepSpeed.

Gain: 1.30 instead of 1.61 TiB of host memory at the peak for a 70B model, by the plan; the bytes of a small model
are counted in `tests/training/patches/test_offloaded_grads.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, chain
from typing import Any

from harness.patches.patch_registry import Patch, PatchFacts, RankAgreement, Target

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"


@contextmanager
def skip_cpu_grad_copies() -> Iterator[None]:
    """Engines that are built in this context hold their gradients once, where all sub-groups are stepped by the CPU
    and not by Muon, ZenFlow or SuperOffload.
    """
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as optimizer_class

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

    optimizer_class.initialize_optimizer_states = without_gradients
    try:
        yield
    finally:
        optimizer_class.initialize_optimizer_states = initialize


def cast_grads_on_step(engine: Any, _: RankAgreement) -> None:
    """The other half of the patch, on an engine that is built."""
    import torch

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

    zero._offload_grad_partition_at_boundary = at_boundary
    zero._prepare_sub_group = prepare
    zero._release_sub_group = forget
    _clear_old_gradients(zero)


def _clear_old_gradients(zero: Any) -> None:
    """Those of the last step that nothing writes over in this one: before one is added to, and before the step."""
    gradients = zero._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition
    pre_step, partition = zero._pre_step, zero.partition_grads

    def clear(parameters: Iterable[Any]) -> None:
        for number in {each.ds_id for each in parameters} & gradients.keys() - zero._offload_boundary_param_ids:
            gradients[number].zero_()

    def begin_step() -> None:
        clear(chain.from_iterable(zero.fp16_groups))
        pre_step()  # forgets which parameters got a gradient

    def write_or_add(parameters: list[Any], partitions: list[Any]) -> Any:
        if zero.micro_step_id > 0:
            clear(parameters)
        return partition(parameters, partitions)

    zero._pre_step, zero.partition_grads = begin_step, write_or_add


def _is_supported(zero: Any) -> bool:
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    devices = getattr(zero, "subgroup_to_device", {}).values()
    return (
        type(zero) is DeepSpeedZeroOptimizer_Stage3
        and zero.offload_optimizer
        and not zero.swap_optimizer
        and not getattr(zero, "use_muon", False)
        and not getattr(zero, "zenflow", False)
        and all(device == "cpu" for device in devices)
    )


def _is_needed(run: PatchFacts) -> bool:
    """A plug-in may read gradients through DeepSpeed; DeepCompile calls no hook when they are complete."""
    is_stepped_otherwise = run.optimizer_type == "muon" or run.has_zenflow or run.has_super_offload
    is_plain = not (is_stepped_otherwise or run.has_plugins or run.has_deepcompile)
    return run.stage == 3 and run.optimizer_device == "cpu" and run.offload_ratio >= 1 and is_plain


PATCH = Patch(
    name="cpu-offload-single-grad",
    kind="memory",
    targets=(
        Target(f"{_OPTIMIZER}.initialize_optimizer_states", "6112e8d626f973b9"),
        Target(f"{_OPTIMIZER}._offload_grad_partition_at_boundary", "b869d413059e6906"),
        Target(f"{_OPTIMIZER}._prepare_sub_group", "411d89bb387bf49b"),
        Target(f"{_OPTIMIZER}._release_sub_group", "7577e656ac3986b9"),
        Target(f"{_OPTIMIZER}._pre_step", "dd5219fe31ca7e9b"),
        Target(f"{_OPTIMIZER}.partition_grads", "4c6115da7e394e62"),
        Target(f"{_OPTIMIZER}._constant_buffered_norm2", "ef33c8a6f89852e2"),
    ),
    private_names=("_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition",),
    remove_when="`initialize_optimizer_states` allocates no second buffer for gradients",
    when="stage 3 with `offload_optimizer.device: cpu` and `ratio` 1, without Muon, ZenFlow, SuperOffload, DeepCompile"
    " or a plug-in",
    is_needed=_is_needed,
    around_initialize=skip_cpu_grad_copies,
    on_engine=cast_grads_on_step,
)
