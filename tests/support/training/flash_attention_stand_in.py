# SPDX-License-Identifier: Apache-2.0
"""The packages `flash_attn` and `flash_attn_interface` in plain torch, for machines that have neither: attention loops
over `cu_seqlens`, in any number format and on the CPU. What the kernels would read as garbage is an error here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

CALLS: list[dict[str, Any]] = []
"""What each call of the varlen function was given besides its tensors."""


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    deterministic: bool = False,
) -> torch.Tensor:
    """(tokens, heads, head size) of all rows; fewer heads of keys and values are shared by groups of queries."""
    assert causal
    assert cu_seqlens_q is cu_seqlens_k
    assert type(max_seqlen_q) is int
    assert max_seqlen_q == max_seqlen_k
    assert cu_seqlens_q.dtype is torch.int32
    CALLS.append({"window_size": window_size, "dropout_p": dropout_p, "max_seqlen": max_seqlen_q})
    borders = cu_seqlens_q.tolist()
    assert borders[0] == 0
    assert borders[-1] == len(q)
    assert all(0 < last - first <= max_seqlen_q for first, last in pairwise(borders))
    parts = [
        _attend(*(t[first:last] for t in (q, k, v)), softmax_scale, window_size[0], dropout_p)
        for first, last in pairwise(borders)
    ]
    return torch.cat(parts)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, left: int, dropout: float
) -> torch.Tensor:
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    seen = torch.ones(len(q), len(q), dtype=torch.bool, device=q.device).tril()
    seen = seen.triu(-left) if left >= 0 else seen
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", torch.nn.functional.dropout(weights, dropout), v)


def flash_attn_3_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    deterministic: bool = False,
) -> tuple[torch.Tensor, None]:
    """The same without dropout; returns a pair."""
    sizes = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return flash_attn_varlen_func(q, k, v, *sizes, 0.0, softmax_scale, causal, window_size, deterministic), None


def _refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("attention of packed rows was asked for without their borders")


def _module(name: str) -> ModuleType:
    """A module that `importlib.util.find_spec` finds, as it finds an installed one."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, loader=None)
    return module


@contextmanager
def flash_attention_stand_in() -> Iterator[None]:
    """In this context `transformers` finds both packages, and takes them on any device."""
    two, padding, three = (_module(name) for name in ("flash_attn", "flash_attn.bert_padding", "flash_attn_interface"))
    two.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    three.flash_attn_varlen_func = flash_attn_3_varlen_func  # type: ignore[attr-defined]
    for module in (two, three):
        module.flash_attn_func = module.flash_attn_with_kvcache = _refuse  # type: ignore[attr-defined]
    padding.pad_input = padding.unpad_input = _refuse  # type: ignore[attr-defined]
    modules = {"flash_attn": two, "flash_attn.bert_padding": padding, "flash_attn_interface": three}
    utils = "transformers.modeling_flash_attention_utils"
    model = "transformers.modeling_utils.PreTrainedModel._flash_attn_can_dispatch"
    CALLS.clear()
    with (
        patch.dict(sys.modules, modules),
        patch(f"{utils}.is_flash_attn_2_available", lambda *_, **__: True),
        patch(f"{utils}._loaded_implementation", None),
        patch(model, lambda *_, **__: True),
    ):
        yield
