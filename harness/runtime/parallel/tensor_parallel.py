# SPDX-License-Identifier: Apache-2.0
"""AutoTP: the part of each weight on each tensor rank, and joining the parts to the whole.

DeepSpeed shards the layers itself at `deepspeed.initialize`, from `tensor_parallel.autotp_size` in the JSON. Its
description of the shards is read here, from a live model or from the `universal_checkpoint_info` of a checkpoint's
`mp_rank_*_model_states.pt`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_INFO

from harness.runtime.engine_protocol import Engine
from harness.runtime.models.quantized_base import full_numel
from harness.runtime.user_errors import user_error


@dataclass(frozen=True, slots=True)
class TPLayout:
    """The layout of one weight over the tensor ranks, as strided views: of the whole, and of each rank's part."""

    shape: torch.Size
    """Of the whole weight."""
    rank_layouts: Mapping[int, Mapping[str, Any]]
    """A tensor rank: `shard_shape`, and `pieces` of {"shape", "source", "dest"}, the last two [offset, strides]."""

    @property
    def dim(self) -> int | None:
        """The dimension along which parts are laid one after the other; None when every rank has the whole."""
        parts = [torch.Size(layout["shard_shape"]) for layout in self.rank_layouts.values()]  # some may be empty
        return next((i for i, whole in enumerate(self.shape) if any(part[i] != whole for part in parts)), None)

    def join_shards(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The whole from the parts of all tensor ranks, in order; what several ranks hold comes from the first."""
        whole = torch.empty(self.shape, dtype=parts[0].dtype)
        for rank in sorted(self.rank_layouts, reverse=True):
            part = parts[rank].contiguous()
            if part.shape != torch.Size(self.rank_layouts[rank]["shard_shape"]):
                raise ValueError(
                    f"part {rank} is {tuple(part.shape)}, should be {self.rank_layouts[rank]['shard_shape']}"
                )
            for piece in self.rank_layouts[rank]["pieces"]:
                (begin, strides), (begin_here, strides_here) = piece["source"], piece["dest"]
                whole.as_strided(piece["shape"], strides, begin).copy_(
                    # A saved shard may be a view of a larger buffer, of which the offset counts from the beginning.
                    part.as_strided(piece["shape"], strides_here, part.storage_offset() + begin_here)
                )
        return whole


def tp_layouts(info: Mapping[str, Any], names: Sequence[str]) -> dict[str, TPLayout]:
    """The layout of each named weight, from `universal_checkpoint_info`.

    The second name of a tied weight has no layout. Raises UserError (CK131) for one that DeepSpeed cannot describe.
    """
    layouts = {}
    for name in names:
        for pattern, reason in info.get("autotp_unsupported_parameter_patterns", {}).items():
            if re.match(pattern, name):
                raise user_error("CK131", f"the shards of `{name}` cannot be joined", notes=(str(reason),))
        for pattern, entry in info["affine_map"]["params"].items():
            if re.match(pattern, name):
                layouts[name] = TPLayout(torch.Size(entry["logical_shape"]), entry["ranks"])
                break
    return layouts


def tp_sharded_weights(engine: Engine) -> dict[str, tuple[int, torch.Size]]:
    """Name -> (dimension, shape of the whole) of every weight that AutoTP has sharded; empty without AutoTP."""
    info = getattr(engine.module, UNIVERSAL_CHECKPOINT_INFO, None)
    if not info or engine.autotp_size() < 2:
        return {}
    names = [name for name, _ in engine.module.named_parameters()]
    layouts = {name: (layout.dim, layout.shape) for name, layout in tp_layouts(info, names).items()}
    return {name: (dim, shape) for name, (dim, shape) in layouts.items() if dim is not None}


def count_parameters(engine: Engine) -> tuple[int, int]:
    """(all, trainable) elements of the whole model, however ZeRO and AutoTP have sharded it."""
    full_sizes = {name: shape.numel() for name, (_, shape) in tp_sharded_weights(engine).items()}
    sizes: list[tuple[Any, bool]] = [
        (full_sizes.get(name) or full_numel(p), p.requires_grad) for name, p in engine.module.named_parameters()
    ]
    return sum(size for size, _ in sizes), sum(size for size, is_trainable in sizes if is_trainable)
