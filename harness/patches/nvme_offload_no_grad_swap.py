# SPDX-License-Identifier: Apache-2.0
"""Keeps gradients in host memory where the optimizer's states are on NVMe.

Upstream: The gradients of a rank's partition are in host memory until the step (`grad_partitions_flat_buffer`). With
the optimizer on NVMe they are also written to the disk, in fp32, and read back in the step: 8 bytes a parameter, a
quarter of the bytes of such a step. Small ones stay in memory (`unswapped_gradients`).

Patch: All of them stay there, as views of the existing buffer, cast to fp32 as they are copied. The step has the same
numbers, except for a parameter that got no gradient: DeepSpeed would give it its last one again.

Gain: 24 instead of 32 bytes a parameter and step, counted at the file handles
(`tests/training/patches/test_offloaded_grads.py`).
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from harness.patches.patch_registry import Patch, RankAgreement, Target

if TYPE_CHECKING:
    import torch

_SWAP = "deepspeed.runtime.swap_tensor"


def keep_grads_in_host_memory(engine: Any, _: RankAgreement) -> None:
    """From now on no gradient of this engine is written to a disk; the step computes with the same numbers. Without
    an optimizer on NVMe nothing changes. Muon and ZenFlow, which step with something else, are left alone.

    A parameter that got no gradient is stepped with none: DeepSpeed would give it its last one again.
    """
    zero = engine.optimizer
    swapper = getattr(zero, "optimizer_swapper", None)
    if swapper is None or getattr(zero, "use_muon", False) or getattr(zero, "zenflow", False):
        return
    flat: torch.Tensor = zero.grad_partitions_flat_buffer
    sizes = [sum(parameter.partition_numel() for parameter in group) for group in zero.fp16_groups]
    starts = accumulate(sizes, initial=0)
    views = [flat.narrow(0, start, size) for start, size in zip(starts, sizes, strict=False)]
    for master, view in zip(zero.fp32_partitioned_groups_flat, views, strict=True):
        info = swapper.swap_params_info.get(master.ds_id)
        if info is not None:
            info.unswapped_gradients = {0: view}
            info.release_unswapped_gradients = view.zero_  # once it is stepped
    swapper.swap_out_gradients = _skip_swap_out


def _skip_swap_out(**_: Any) -> None:
    """Replaces the swapper's method, which is called when gradients of a sub-group are complete."""


PATCH = Patch(
    name="nvme-offload-no-grad-swap",
    kind="performance",
    targets=(
        Target(
            f"{_SWAP}.partitioned_optimizer_swapper:PartitionedOptimizerSwapper.swap_out_gradients", "1c8088248a6e9157"
        ),
        Target(f"{_SWAP}.pipelined_optimizer_swapper:PipelinedOptimizerSwapper.swap_out_gradients", "1c8088248a6e9157"),
        Target(f"{_SWAP}.optimizer_utils:OptimizerStateSwapInfo", "5133342c80244f20"),
    ),
    remove_when="`partition_grads` writes no gradients to NVMe that `grad_partitions_flat_buffer` has",
    when="stage 3 with `offload_optimizer.device: nvme`, without Muon or ZenFlow",
    upstream="https://github.com/deepspeedai/DeepSpeed/issues/3673",
    is_needed=lambda run: (
        run.stage == 3 and run.optimizer_device == "nvme" and run.optimizer_type != "muon" and not run.has_zenflow
    ),
    on_engine=keep_grads_in_host_memory,
)
