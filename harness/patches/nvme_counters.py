# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes and the blocked time of NVMe swapping.

Upstream: The swappers report neither.

Patch: DeepSpeed's swappers open file handles of a class that counts and calls the original one.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.patches.patch_registry import Patch, Target


def replace_aio_handle(make_class: Callable[[type], type]) -> None:
    """From now on DeepSpeed opens handles of `make_class(its own class)`. A second call changes nothing."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    op = AsyncIOBuilder().load(verbose=False)
    if not hasattr(op.aio_handle, "counted_by_harness"):
        op.aio_handle = make_class(op.aio_handle)


PATCH = Patch(
    name="nvme-counters",
    kind="measurement",
    targets=(
        Target("deepspeed.ops.op_builder.async_io:AsyncIOBuilder", "1a5e21fa208aa643"),
        Target(
            "deepspeed.runtime.swap_tensor.partitioned_optimizer_swapper:PartitionedOptimizerSwapper.__init__",
            "5b10898948a3d927",
        ),
        Target(
            "deepspeed.runtime.swap_tensor.partitioned_param_swapper:AsyncPartitionedParameterSwapper.__init__",
            "d83849267664d520",
        ),
    ),
    remove_when="DeepSpeed reports the bytes and the blocked seconds of its swapping",
    when="runs with states or parameters on NVMe",
    is_needed=lambda run: "nvme" in (run.optimizer_device, run.param_device),
)
