"""Number formats as DeepSpeed names them, and the one that the model is trained in. Judges nothing.

Source: `DtypeEnum` in `runtime/config.py`, `get_data_types` in `runtime/engine.py`.
"""

from __future__ import annotations

from harness.gates.registry import Context

NAMES = {
    "fp16": ("torch.float16", "fp16", "float16", "half"),
    "fp32": ("torch.float32", "fp32", "float32", "float"),
    "int8": ("torch.int8", "int8"),
    "bf16": ("torch.bfloat16", "bf16", "bfloat16"),
}
_FORMAT = {name: kind for kind, names in NAMES.items() for name in names}


def format_of(name: object) -> str | None:
    """`fp16`, `bf16`, `fp32` or `int8` for one of DeepSpeed's names of it; None for anything else."""
    return _FORMAT.get(name) if isinstance(name, str) else None


def model_format(ctx: Context) -> str | None:
    """What the engine takes the model to be: `fp16`, `bf16` or `fp32`; None where an `auto` leaves it open."""
    if ctx.is_auto("fp16.enabled") or ctx.is_auto("bf16.enabled") or ctx.is_auto("bfloat16.enabled"):
        return None
    if ctx.on("fp16"):
        return "fp16"
    return "bf16" if ctx.on("bf16") or (ctx.on("bfloat16") and not ctx.wrote("bf16")) else "fp32"


def accumulation_format(ctx: Context) -> str | None:
    """The format of `data_types.grad_accum_dtype`; None where it is absent or no format at all."""
    return format_of(ctx.ds("data_types.grad_accum_dtype"))
