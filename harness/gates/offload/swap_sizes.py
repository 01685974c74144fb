"""Sizes that ZeRO-3 swaps to NVMe, in elements: shards of parameters and sub-groups of the optimizer.

Arithmetic for the gates of this folder; it judges nothing. Sources: `runtime/swap_tensor/partitioned_param_swapper.py`
and `runtime/zero/stage3.py`.
"""

from __future__ import annotations

from typing import Any

from harness.gates.registry import Context

_MIN_BYTES = 1 << 20
BUFFERS = {"": 0, "adagrad": 3, "lion": 4, "adam": 4, "adamw": 4}
"""A step of one sub-group holds master weights, states and gradient; Lion on the CPU has two states and reads one."""


def shares(ctx: Context) -> tuple[int, ...] | None:
    """Elements of each parameter that one rank keeps at stage 3; None where model or ranks are not known."""
    model, data = ctx.model, ctx.data_parallel_size
    if model is None or data is None or ctx.tensor_parallel_size > 1 or ctx.pipeline_parallel_size > 1:
        return None
    ranks = data * ctx.sequence_parallel_size
    return tuple(-(-parameter.numel // ranks) for parameter in model.parameters())


def swapped_sizes(ctx: Context, parts: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the shares that go to the disk: smaller ones than 1 MiB or one block stay in memory."""
    block = ctx.ds("aio.block_size", 0)
    least = max(_MIN_BYTES, block if isinstance(block, int) else 0)
    width = 2 if ctx.is_enabled("bf16") or ctx.is_enabled("fp16") else 4
    return tuple(part for part in parts if part * width >= least)


def fits_in_host_memory(ctx: Context, parts: tuple[int, ...]) -> bool:
    """Do all parameter shards live in host memory for good, because `max_in_cpu` covers them?"""
    return sum(parts) <= int(ctx.ds("zero_optimization.offload_param.max_in_cpu", 1_000_000_000))


def value(ctx: Context, key: str, default: Any) -> Any:
    """Of `zero_optimization`: what is written, else what is chosen for a run spec, else DeepSpeed's default."""
    from harness.plan.tuned_defaults.rules import tuned_defaults_for

    whole = f"zero_optimization.{key}"
    if ctx.has_key(whole):
        return ctx.ds(whole, default)
    return next((c.value for c in tuned_defaults_for(ctx.run, ctx.model) if c.key == whole), ctx.ds(whole, default))


def sub_group_limit(ctx: Context) -> int:
    """Elements at which a sub-group of the optimizer is closed."""
    return int(ctx.ds("zero_optimization.sub_group_size", 1_000_000_000))


def sub_groups_on_disk(ctx: Context, parts: tuple[int, ...]) -> int:
    """Sub-groups that the optimizer swaps: closed when their shares reach the limit, those of 1 MiB in fp32 and more
    (`stage3.py` `_create_fp16_sub_groups`, `_swappable_optimizer_subgroup`).
    """
    limit, sizes, open_ = sub_group_limit(ctx), [], 0
    for part in parts:
        open_ += part
        if open_ >= limit:
            sizes.append(open_)
            open_ = 0
    return sum(size * 4 >= _MIN_BYTES for size in [*sizes, open_]) if sum(parts) > limit else 1
