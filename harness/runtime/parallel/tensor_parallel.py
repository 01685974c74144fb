"""AutoTP: which part of a weight each tensor rank holds, and how the parts make the whole again.

DeepSpeed cuts the layers itself at `deepspeed.initialize`, from `tensor_parallel.autotp_size` in the JSON. What it
wrote about the cuts is read here, from a live model or from the `universal_checkpoint_info` of a checkpoint's
`mp_rank_*_model_states.pt`; nothing is cut here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_INFO

from harness.runtime.user_errors import user_error


@dataclass(frozen=True, slots=True)
class TPLayout:
    """How one weight is spread over the tensor ranks, as strided views: of the whole, and of each rank's part."""

    shape: torch.Size
    """Of the whole weight."""
    rank_layouts: Mapping[int, Mapping[str, Any]]
    """A tensor rank: `shard_shape`, and `pieces` of {"shape", "source", "dest"}, the last two [offset, strides]."""

    @property
    def dim(self) -> int | None:
        """The dimension along which parts are laid one after the other; None when every rank has the whole."""
        first = torch.Size(self.rank_layouts[0]["shard_shape"])
        return next((i for i, (part, whole) in enumerate(zip(first, self.shape, strict=True)) if part != whole), None)

    def join_shards(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The whole from the parts of all tensor ranks, in order; what several ranks hold is taken from the first."""
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
    """The cut of each named weight, from `universal_checkpoint_info`.

    A name under which a tied weight is stored a second time has none. Raises Refused (CK131) when DeepSpeed calls a
    weight's layout one that it cannot describe.
    """
    found = {}
    for name in names:
        for pattern, why in info.get("autotp_unsupported_parameter_patterns", {}).items():
            if re.match(pattern, name):
                raise user_error("CK131", f"the shards of `{name}` cannot be put together again", notes=(str(why),))
        for pattern, entry in info["affine_map"]["params"].items():
            if re.match(pattern, name):
                found[name] = TPLayout(torch.Size(entry["logical_shape"]), entry["ranks"])
                break
    return found


def tp_sharded_weights(engine: Any) -> dict[str, tuple[int, torch.Size]]:
    """Name -> (dimension, shape of the whole) of every weight that AutoTP has cut; empty without AutoTP."""
    info = getattr(engine.module, UNIVERSAL_CHECKPOINT_INFO, None)
    if not info or engine.autotp_size() < 2:
        return {}
    names = [name for name, _ in engine.module.named_parameters()]
    found = {name: (cut.dim, cut.shape) for name, cut in tp_layouts(info, names).items()}
    return {name: (dim, shape) for name, (dim, shape) in found.items() if dim is not None}


def count_parameters(engine: Any) -> int:
    """Elements of the model, whole, however ZeRO and AutoTP have cut it."""
    whole = {name: shape.numel() for name, (_, shape) in tp_sharded_weights(engine).items()}
    named = engine.module.named_parameters()
    return sum(whole.get(name) or getattr(p, "ds_numel", p.numel()) for name, p in named)
