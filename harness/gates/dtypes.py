# SPDX-License-Identifier: Apache-2.0
"""Number formats as DeepSpeed names them, and the one that the model trains in. Judges nothing.

Source: `DtypeEnum` in `runtime/config.py`, `get_data_types` in `runtime/engine.py`.
"""

from __future__ import annotations

from harness.gates.registry import Context

DTYPE_NAMES = {
    "fp16": ("torch.float16", "fp16", "float16", "half"),
    "fp32": ("torch.float32", "fp32", "float32", "float"),
    "int8": ("torch.int8", "int8"),
    "bf16": ("torch.bfloat16", "bf16", "bfloat16"),
}
_DTYPE_BY_NAME = {name: dtype for dtype, names in DTYPE_NAMES.items() for name in names}


def dtype_of(name: object) -> str | None:
    """`fp16`, `bf16`, `fp32` or `int8` for one of DeepSpeed's names of it; None for anything else."""
    return _DTYPE_BY_NAME.get(name) if isinstance(name, str) else None


def model_dtype(ctx: Context) -> str | None:
    """The format of the model in the engine: `fp16`, `bf16` or `fp32`; None where an `auto` leaves it open."""
    if ctx.is_auto("fp16.enabled") or ctx.is_auto("bf16.enabled") or ctx.is_auto("bfloat16.enabled"):
        return None
    if ctx.is_enabled("fp16"):
        return "fp16"
    return "bf16" if ctx.is_enabled("bf16") or (ctx.is_enabled("bfloat16") and not ctx.has_key("bf16")) else "fp32"


def grad_accum_dtype(ctx: Context) -> str | None:
    """The format of `data_types.grad_accum_dtype`; None where it is absent or no format at all."""
    return dtype_of(ctx.ds("data_types.grad_accum_dtype"))


def has_bf16_optimizer(ctx: Context) -> bool:
    """Does DeepSpeed take its BF16_Optimizer for a model in bf16: at stage 0 in a pipeline, or at stage 1 with fp32
    accumulation and an optimizer that is not offloaded to the CPU?
    """
    if ctx.stage == 0:
        return ctx.pipeline_parallel_size > 1
    return ctx.stage == 1 and grad_accum_dtype(ctx) == "fp32" and ctx.offload_device("offload_optimizer") != "cpu"
