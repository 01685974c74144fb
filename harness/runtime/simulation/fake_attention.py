# SPDX-License-Identifier: Apache-2.0
"""Attention by the kernels that torch takes on CUDA: their outputs, with no scores of length x length."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

_aten: Any = torch.ops.aten
KERNELS_USED: dict[str, int] = {}
"""Calls of each kernel."""


def fake_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` (batch, heads, length, size): flash without a mask in 16 bit,
    else the memory-efficient kernel, which gets keys and values of every query head and a mask in the query's dtype.
    """
    is_16bit = query.dtype in (torch.float16, torch.bfloat16)
    if attn_mask is None and is_16bit:
        _count("flash")
        out: torch.Tensor = _aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, return_debug_mask=False, scale=scale
        )[0]
        return out
    _count("memory-efficient")
    if enable_gqa and query.shape[1] != key.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    bias = _to_bias(attn_mask, query, key)
    needs_grad = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    efficient: torch.Tensor = _aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
    )[0]
    return efficient


def count_varlen_attention(varlen_attn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which has fake outputs of its own, counted."""

    @wraps(varlen_attn)
    def attend(*args: Any, **kwargs: Any) -> Any:
        _count("flash by document")
        return varlen_attn(*args, **kwargs)

    return attend


def _to_bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """A boolean mask as zeros and minus infinities, in the query's dtype, as torch converts it in every call."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _count(kernel: str) -> None:
    KERNELS_USED[kernel] = KERNELS_USED.get(kernel, 0) + 1
