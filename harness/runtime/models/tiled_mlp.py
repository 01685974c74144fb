# SPDX-License-Identifier: Apache-2.0
"""MLPs and norms over tiles of tokens, `train.mlp_tile_size`: the wide activations of one tile exist at once, and the
fp32 copies of one tile in a norm, whose backward pass has five more.

Each tile is a `checkpoint` of torch, whose graph sums the gradients of a weight before any hook of ZeRO sees them.
DeepSpeed's `TiledMLP` runs a backward pass for each tile and tells ZeRO with the last one that a gradient is complete.
`torch.chunk` may make fewer tiles than it counts: 9 tokens in 4 tiles end in an error at stage 3 (run on 0.19.8). It
keeps neither the random state of dropout nor autocast for the backward pass (read).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from harness.runtime.user_errors import user_error


class TiledForward:
    """The forward pass of an MLP or a norm in a fixed number of tiles: ranks of other lengths gather alike."""

    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor], num_tiles: int) -> None:
        self._forward, self.num_tiles = forward, num_tiles

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., hidden size) to the same shape."""
        tokens = hidden.reshape(1, -1, hidden.shape[-1])
        # `tensor_split` would make slices, each with a gradient of all tokens.
        tiles = tokens.split(split_evenly(tokens.shape[1], self.num_tiles), dim=1)
        if torch.is_grad_enabled():
            outputs = [checkpoint(self._forward, tile, use_reentrant=False) for tile in tiles]
        else:
            outputs = [self._forward(tile) for tile in tiles]
        return torch.cat(outputs, dim=1).view(hidden.shape)


def split_evenly(count: int, num_parts: int) -> list[int]:
    """The sizes of so many parts, the larger ones first; some are 0 where there are more parts than things."""
    size, rest = divmod(count, num_parts)
    return [size + (part < rest) for part in range(num_parts)]


def tile_mlps(model: PreTrainedModel, num_tiles: int) -> None:
    """Run every dense MLP of the model's layers in `num_tiles` tiles, and also the norms of these layers and the last
    norm. Raises UserError (MD161) if no layer has a dense MLP.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    dense = [layer for layer in layers if getattr(layer, "mlp", None) is not None and not _routes(layer.mlp)]
    if not dense:
        raise user_error(
            "MD161",
            f"no layer of `{type(model).__name__}` has an MLP that can be computed in tiles",
            key="train.mlp_tile_size",
            fix="remove `train.mlp_tile_size`",
        )
    parents: list[torch.nn.Module] = [*dense, model.base_model]
    tiled: list[Any] = [layer.mlp for layer in dense]
    norms = (child for parent in parents for child in parent.children() if type(child).__name__.endswith("Norm"))
    tiled += norms  # of hidden states: those of heads are inside the attention
    for module in tiled:
        module.forward = TiledForward(module.forward, num_tiles)


def _routes(mlp: Any) -> bool:
    """Does it send tokens to experts? What these hold depends on the tokens."""
    return any("expert" in name or "router" in name for name, _ in mlp.named_modules())
