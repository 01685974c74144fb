"""Whole fp32 tensors out of a sharded DeepSpeed checkpoint, one at a time, whatever the ZeRO stage.

The files stay memory-mapped: a tensor is put together when it is asked for, so that memory holds one tensor and not the
model. The layout is DeepSpeed's own (`utils/zero_to_fp32.py` reads the same keys); nothing is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from harness.runtime.refusals import refusal

# All that DeepSpeed pickles beside tensors and plain values; a shard with anything else is refused instead of executed.
_KNOWN = [ZeroStageEnum, LossScaler, DynamicLossScaler, fragment_address]


@dataclass(frozen=True)
class Weights:
    """The tensors by name. `get` returns a contiguous tensor of its own: fp32 from the master weights, or as stored."""

    shapes: dict[str, torch.Size]
    get: Callable[[str], torch.Tensor]
    shared: dict[str, str]
    """Tied parameters: name -> the name under which the tensor is stored."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)


def open_weights(folder: Path, stage: int) -> Weights:
    """Trained parameters, frozen ones and saved buffers of a checkpoint's tag folder.

    Stages 1-3: the fp32 master weights. Stage 0: the weights as they were trained, the only ones of that checkpoint.
    Raises Refused (CK105) when the folder is not such a checkpoint.
    """
    models = [_load(f) for f in _files(folder, "*_model_states.pt")]
    first = models[0]
    if stage == 0:
        return _stage0(first["module"])
    shared = {str(k): str(v) for k, v in first["shared_params"].items()}
    optimizers = [_load(f)["optimizer_state_dict"] for f in _files(folder, "*_optim_states.pt")]
    _check_count(folder, optimizers)
    read = _stage3 if stage == 3 else _stage12
    parts = read(first["param_shapes"], optimizers)
    parts.update(_frozen(models, stage))
    buffers = {n: first["module"][n] for n in first["buffer_names"] if n in first["module"]}
    parts.update({n: (t.shape, lambda t=t: t.clone()) for n, t in buffers.items()})
    return Weights({n: shape for n, (shape, _) in parts.items()}, lambda name: parts[name][1](), shared)


def _stage0(module: dict[str, torch.Tensor]) -> Weights:
    """All weights as they were trained; tied ones are the same memory under two names, the first is kept."""
    owners: dict[tuple[int, torch.Size], str] = {}
    shared = {}
    for name, tensor in module.items():
        owner = owners.setdefault((tensor.data_ptr(), tensor.shape), name) if tensor.numel() else name
        if owner != name:
            shared[name] = owner
    shapes = {name: tensor.shape for name, tensor in module.items() if name not in shared}
    return Weights(shapes, lambda name: module[name].contiguous(), shared)


Part = tuple[torch.Size, Callable[[], torch.Tensor]]


def _stage12(groups: list[dict[str, Any]], optimizers: list[dict[str, Any]]) -> dict[str, Part]:
    """Stages 1 and 2: each group is one flat vector of its parameters in order, cut equally over the ranks."""
    parts: dict[str, Part] = {}
    paddings = optimizers[0].get("param_alignment_paddings")
    for g, shapes in enumerate(groups):
        pieces = [o["single_partition_of_fp32_groups"][g] for o in optimizers]
        offset = 0
        for i, (name, shape) in enumerate(shapes.items()):
            size = torch.Size(shape)
            parts[name] = (size, lambda p=pieces, o=offset, s=size: _from_vector(p, o, s))
            offset += math.prod(size) + (paddings[g][i] if paddings else 0)
    return parts


def _from_vector(pieces: list[torch.Tensor], offset: int, shape: torch.Size) -> torch.Tensor:
    """Elements `offset` .. `offset` + numel of the concatenation of `pieces`."""
    end, start, taken = offset + math.prod(shape), 0, []
    for piece in pieces:
        low, high = max(offset - start, 0), min(end - start, len(piece))
        if low < high:
            taken.append(piece[low:high])
        start += len(piece)
    if sum(map(len, taken)) != math.prod(shape):
        raise refusal(
            "CK105",
            f"the checkpoint's shards hold {sum(map(len, taken))} of the {math.prod(shape)} elements of a weight",
            notes=("an optimizer on NVMe keeps its weights in swap files, which are not read",),
            fix="name a checkpoint whose optimizer was on the device or the CPU",
        )
    return torch.cat(taken).view(shape) if taken else torch.empty(shape)


def _stage3(groups: list[dict[str, Any]], optimizers: list[dict[str, Any]]) -> dict[str, Part]:
    """Stage 3: every parameter is cut into equal pieces over the ranks (the last padded); a rank's pieces follow each
    other, in the order of the groups, through its list of flat vectors (one a sub-group).
    """
    parts: dict[str, Part] = {}
    ranks = [list(o["fp32_flat_groups"]) for o in optimizers]
    offset = 0
    for shapes in groups:
        for name, shape in shapes.items():
            size = torch.Size(shape)
            piece = math.ceil(math.prod(size) / len(ranks))
            parts[name] = (size, lambda o=offset, n=piece, s=size: _from_pieces(ranks, o, n, s))
            offset += piece
    return parts


def _from_pieces(ranks: list[list[torch.Tensor]], offset: int, numel: int, shape: torch.Size) -> torch.Tensor:
    pieces = [_from_vector(vectors, offset, torch.Size([numel])) for vectors in ranks]
    return torch.cat(pieces)[: math.prod(shape)].view(shape).clone()


def _frozen(models: list[dict[str, Any]], stage: int) -> dict[str, Part]:
    """Parameters that are not trained: whole in every file up to stage 2, cut over the ranks at stage 3."""
    parts: dict[str, Part] = {}
    for name, shape in (models[0].get("frozen_param_shapes") or {}).items():
        pieces = [m["frozen_param_fragments"][name] for m in (models if stage == 3 else models[:1])]
        size = torch.Size(shape)
        parts[name] = (size, lambda p=pieces, s=size: torch.cat([x.flatten() for x in p])[: math.prod(s)].view(s))
    return parts


def _files(folder: Path, pattern: str) -> list[Path]:
    """In rank order. The names hold the rank without leading zeros, so that sorting by name would put 10 before 2."""
    found = sorted(
        folder.glob(pattern), key=lambda p: [int(x) for x in "".join(c if c.isdigit() else " " for c in p.name).split()]
    )
    if not found:
        raise refusal("CK105", f"`{folder}` has no file `{pattern}`", fix="name a complete checkpoint")
    return found


def _load(file: Path) -> dict[str, Any]:
    """Mapped, and without running code from the file."""
    with torch.serialization.safe_globals(_KNOWN):
        loaded: dict[str, Any] = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    return loaded


def _check_count(folder: Path, optimizers: list[dict[str, Any]]) -> None:
    expected = optimizers[0]["partition_count"]
    count = max(expected) if isinstance(expected, list) else expected
    if count != len(optimizers):
        raise refusal(
            "CK105",
            f"`{folder}` has {len(optimizers)} optimizer shards, should have {count}",
            fix="name a complete checkpoint",
        )
