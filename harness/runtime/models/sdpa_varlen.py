# SPDX-License-Identifier: Apache-2.0
"""The attention function `sdpa_varlen`: causal attention inside each document of packed rows, without a mask.

On CUDA in 16 bit, `torch.nn.attention.varlen.varlen_attn` computes all documents in one call of torch's own flash
kernel; no package is needed. Elsewhere, and with dropout, which that function does not have, each document is a call of
`scaled_dot_product_attention`, which takes its fused kernels since no mask is given. Grouped queries stay grouped. A
sliding window shorter than a document is computed in blocks of its own length, with a mask of window x 2 windows.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from typing import Any, cast

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface

NAME = "sdpa_varlen"
MAX_HEAD_SIZE = 256
"""Of torch's flash kernel."""
_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_MASKED_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""torch 2.11 prefers cuDNN on Hopper, whose backward pass is wrong with a mask and some lengths (pytorch issue 196678).
On an H100 the check of packed rows ended with an illegal memory access before cuDNN was left out.
"""
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


def sdpa_varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    document_borders: tuple[int, ...] | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """(rows, heads, length, head size) -> (rows, length, heads, head size of the values).

    `document_borders`: cumulative lengths of the documents over all rows, one row after the other, on the host; without
    them each row is a document. `cu_seq_lens_q`: the same on the device. Raises ValueError for what it cannot compute.
    """
    if attention_mask is not None:
        raise ValueError(f"`{NAME}` takes no attention mask: boundaries separate the documents")
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ValueError(f"`{NAME}` does not support `{name}`")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise ValueError(f"`{NAME}` is causal attention")
    rows, _, length, _ = query.shape
    if document_borders is None:
        document_borders, cu_seq_lens_q = tuple(range(0, rows * length + 1, length)), None
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    if dropout == 0 and is_one_call(query, value):
        if cu_seq_lens_q is None:
            cu_seq_lens_q = torch.tensor(document_borders, dtype=torch.int32).to(query.device, non_blocking=True)
        out = _attend_in_one_call(q, k, v, document_borders, cu_seq_lens_q, scaling, sliding_window)
    else:
        out = _attend_by_document(q, k, v, document_borders, dropout, scaling, sliding_window)
    return out.unflatten(0, (rows, length)), None


def is_one_call(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Does torch's flash kernel take all documents at once: on CUDA, in 16 bit, with heads that it has?"""
    return (
        query.device.type == "cuda"
        and query.dtype in _FLASH_DTYPES
        and query.shape[-1] == value.shape[-1] <= MAX_HEAD_SIZE
        and query.shape[-1] % 8 == 0
        and _has_flash_kernel()
        and has_varlen_kernel()
    )


@cache
def _has_flash_kernel() -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)


@cache
def has_varlen_kernel() -> bool:
    """Has this torch a `varlen_attn` with windows and grouped queries? (2.13 has; read, not run, on CUDA.)"""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"window_size", "enable_gqa", "scale"} <= set(inspect.signature(varlen_attn).parameters)


def _attend_in_one_call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    borders: tuple[int, ...],
    cu_seq_lens: torch.Tensor,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """(tokens, heads, head size) of all rows."""
    from torch.nn.attention.varlen import varlen_attn

    longest = max(last - first for first, last in pairwise(borders))
    left = window - 1 if window and window < longest else -1
    out: Any = varlen_attn(
        query,
        key,
        value,
        cu_seq_lens,
        cu_seq_lens,
        longest,
        longest,
        scale=scaling,
        window_size=(left, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return cast("torch.Tensor", out)


def _attend_by_document(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    borders: tuple[int, ...],
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """(tokens, heads, head size) of all rows. Cuts by `split`, whose backward pass writes each gradient once."""
    lengths = [last - first for first, last in pairwise(borders)]
    parts = zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
    outs = []
    for part in parts:
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in part)
        if window and window < q.shape[2]:
            out = _attend_in_window(q, k, v, dropout, scaling, window)
        else:
            out = _attend(q, k, v, None, dropout, scaling)
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


def _attend_in_window(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, scaling: float | None, window: int
) -> torch.Tensor:
    """(1, heads, length, head size): queries in blocks of a window's length, which see their own block and the one
    before it.
    """
    blocks = [tensor.split(window, dim=2) for tensor in (query, key, value)]
    mask = torch.ones(window, 2 * window, dtype=torch.bool, device=query.device).tril_(window).triu_(1)
    outs = [_attend(blocks[0][0], blocks[1][0], blocks[2][0], None, dropout, scaling)]
    for i in range(1, len(blocks[0])):
        q = blocks[0][i]
        k, v = (torch.cat([tensors[i - 1], tensors[i]], dim=2) for tensors in blocks[1:])
        outs.append(_attend(q, k, v, mask[: q.shape[2], : k.shape[2]], dropout, scaling))
    return torch.cat(outs, dim=2)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    scaling: float | None,
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    is_flash = mask is None and query.dtype in _FLASH_DTYPES
    if groups > 1 and query.device.type == "cuda" and not is_flash:  # its other kernels take no grouped queries
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        groups = 1
    with nullcontext() if mask is None or query.device.type != "cuda" else sdpa_kernel(_MASKED_BACKENDS):
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=groups > 1,
        )


def register_attention() -> None:
    """Make the function known to `transformers`, which then makes no mask for models that use it."""
    AttentionInterface.register(NAME, sdpa_varlen_attention)
