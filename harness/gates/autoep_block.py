# SPDX-License-Identifier: Apache-2.0
"""The `expert_parallel` block of AutoEP, and its presets. No gate of its own."""

from __future__ import annotations

from typing import Any

from harness.gates.context import Context

PRESETS: dict[str, tuple[str, ...]] = {
    "mixtral": ("mixtral",),
    "qwen3_moe": ("qwen3_moe", "qwen2_moe"),
    "qwen3_5_moe": ("qwen3_5_moe_text",),
    "deepseek_v2": ("deepseek_v2",),
    "deepseek_v3": ("deepseek_v3",),
    "minimax_m3": ("minimax_m3_vl_text",),
}
"""Presets and the model types that they are made for (`module_inject/auto_ep_presets/`)."""


def is_autoep_enabled(ctx: Context) -> bool:
    """Is AutoEP switched on? DeepSpeed takes any true value."""
    return bool(ctx.ds("expert_parallel.enabled"))


def read_int(ctx: Context, name: str, default: int = 1) -> int:
    """A whole number of the `expert_parallel` block; `default` for any other value."""
    value: Any = ctx.ds(f"expert_parallel.{name}", default)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
