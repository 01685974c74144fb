# SPDX-License-Identifier: Apache-2.0
"""Recomputation of a layer that keeps the output of its attention: `train.gradient_checkpointing: {keep: attention}`.

torch's `create_selective_checkpoint_contexts` counts every operator of a layer in both passes and fails where they
differ. Under ZeRO-3 they do: a recomputed layer finds other parameters gathered. These modes look at attention alone.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_TORCH_KERNELS = frozenset(("torch_attn::_varlen_attn",)) | frozenset(
    f"aten::{name}"
    for name in (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
        "_flash_attention_forward",
        "_efficient_attention_forward",
        "_cudnn_attention_forward",
    )
)


def attention_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """The `context_fn` of torch's `checkpoint`: what surrounds the forward pass of a layer, and its recomputation."""
    outputs: deque[Any] = deque()
    return KeepAttention(outputs), ReplayAttention(outputs)


def is_attention_kernel(name: str) -> bool:
    """Is this a forward kernel of torch (`aten::...`, `torch_attn::...`) or of the package flash-attn
    (`flash_attn::_flash_attn_forward`, `flash_attn_3::fwd`)?
    """
    if name in _TORCH_KERNELS or not name.startswith("flash_attn"):
        return name in _TORCH_KERNELS
    kernel = name.partition("::")[2]
    return "bwd" not in kernel and "backward" not in kernel and ("fwd" in kernel or "forward" in kernel)


class KeepAttention(TorchDispatchMode):
    """Keeps what each attention kernel of the forward pass returns."""

    def __init__(self, outputs: deque[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outputs = outputs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if is_attention_kernel(func.name()):
            # autograd writes the graph into the tensor that is returned, which would keep the graph alive
            self._outputs.append(tree_map_only(torch.Tensor, torch.Tensor.detach, output))
        return output


class ReplayAttention(TorchDispatchMode):
    """Returns what the forward pass kept, in its order, instead of calling the kernels again."""

    def __init__(self, outputs: deque[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outputs = outputs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_attention_kernel(func.name()):
            return self._outputs.popleft()
        return func(*args, **(kwargs or {}))
