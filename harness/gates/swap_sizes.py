# SPDX-License-Identifier: Apache-2.0
"""Sizes that ZeRO-3 swaps to NVMe, in elements: shards of parameters and sub-groups of the optimizer.

Arithmetic for the gates of offload; it judges nothing. Sources: `runtime/swap_tensor/partitioned_param_swapper.py`
and `runtime/zero/stage3.py`.
"""

from __future__ import annotations

from typing import Any

from harness.gates.registry import Context

_MIN_BYTES = 1 << 20
_BUFFERS = {"": 0, "adagrad": 3, "lion": 4, "adam": 4, "adamw": 4}
"""A step of one sub-group holds master weights, states and gradient; Lion on the CPU has two states and reads one."""


def count_buffers_per_sub_group(ctx: Context) -> int:
    """Swap buffers that a step of one sub-group holds; 0 where the optimizer is not known."""
    return _BUFFERS.get(ctx.optimizer.name, 2)


def list_shard_sizes(ctx: Context) -> tuple[int, ...] | None:
    """Elements of each parameter that one rank keeps at stage 3; None where model or ranks are not known."""
    model = ctx.model
    data = ctx.data_parallel_size
    if model is None or data is None or ctx.tensor_parallel_size > 1 or ctx.pipeline_parallel_size > 1:
        return None
    ranks = data * ctx.sequence_parallel_size
    return tuple(-(-parameter.numel // ranks) for parameter in model.parameters())


def list_swapped_sizes(ctx: Context, shards: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the shards that go to the disk: smaller ones than 1 MiB or one block stay in memory."""
    block = ctx.ds("aio.block_size", 0)
    min_bytes = max(_MIN_BYTES, block if isinstance(block, int) else 0)
    width = 2 if ctx.is_enabled("bf16") or ctx.is_enabled("fp16") else 4
    return tuple(shard for shard in shards if shard * width >= min_bytes)


def is_kept_in_host_memory(ctx: Context, shards: tuple[int, ...]) -> bool:
    """Do all parameter shards live in host memory for good, because `max_in_cpu` covers them?"""
    return sum(shards) <= int(ctx.ds("zero_optimization.offload_param.max_in_cpu", 1_000_000_000))


def get_parameter_buffer_size(ctx: Context) -> Any:
    """Elements of one buffer that parameters are swapped through."""
    return resolve_zero_value(ctx, "offload_param.buffer_size", 100_000_000)


def resolve_zero_value(ctx: Context, name: str, default: Any) -> Any:
    """A key of `zero_optimization`: the user's value, else a run spec's tuned default, else DeepSpeed's default."""
    from harness.plan.tuned_defaults.rules import tuned_defaults_for

    key = f"zero_optimization.{name}"
    value = ctx.ds(key, default)
    if ctx.has_key(key):
        return value
    return next((tuned.value for tuned in tuned_defaults_for(ctx.run, ctx.model) if tuned.key == key), value)


def get_sub_group_size(ctx: Context) -> int:
    """Elements at which a sub-group of the optimizer is closed."""
    return int(ctx.ds("zero_optimization.sub_group_size", 1_000_000_000))


def count_swapped_sub_groups(ctx: Context, shards: tuple[int, ...]) -> int:
    """Sub-groups that the optimizer swaps: closed when their shards reach the limit, those of 1 MiB in fp32 and more
    (`stage3.py` `_create_fp16_sub_groups`, `_swappable_optimizer_subgroup`).
    """
    limit = get_sub_group_size(ctx)
    if sum(shards) <= limit:
        return 1
    sizes = []
    size = 0
    for shard in shards:
        size += shard
        if size >= limit:
            sizes.append(size)
            size = 0
    return sum(4 * elements >= _MIN_BYTES for elements in [*sizes, size])
