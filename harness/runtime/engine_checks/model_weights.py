"""What this rank holds of the model's weights and of the optimizer's own, wherever ZeRO, AutoTP and a pipeline put it.

Reads, and gathers nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_INFO

from harness.runtime.engine_checks import weight_checksums
from harness.runtime.parallel.tensor_parallel import TPLayout, tp_layouts

MAX_TOTAL_ELEMENTS = 1 << 16
"""Elements that a rank looks at in one go, over all weights."""
_MASTER_WEIGHT_ATTRIBUTES = (
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
    "fp32_groups_flat_partition",
)


@dataclass(frozen=True, slots=True)
class WeightRecord:
    """A weight before `deepspeed.initialize`: `sums` by dtype, of this rank's shard if it was `sharded`."""

    shape: tuple[int, ...]
    dtype: str
    is_trainable: bool
    is_sharded: bool
    checksums: dict[str, tuple[int, int]] | None


def shape_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """Of the whole, before AutoTP; at stage 3 a parameter is an empty tensor outside its forward."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def numel_of(parameter: torch.Tensor) -> int:
    """The same as a count."""
    return int(torch.Size(shape_of(parameter)).numel())


def shard_of(parameter: Any) -> tuple[torch.Tensor, int] | None:
    """What this rank holds, flat, and where in the whole it begins; None while it is on NVMe or quantized."""
    shard = getattr(parameter, "ds_tensor", None)
    if shard is None:
        return (parameter.detach().reshape(-1), 0) if parameter.is_contiguous() else None
    if shard.numel() == 0 or not shard.is_floating_point() or "NOT_AVAILABLE" in str(getattr(shard, "status", "")):
        return None
    group = getattr(parameter, "ds_process_group", None)
    rank = torch.distributed.get_rank(group) if group is not None else torch.distributed.get_rank()
    begin = rank * int(shard.ds_numel)
    return shard.detach().reshape(-1)[: max(0, numel_of(parameter) - begin)], begin  # the last shard is padded


def select_names(named: Sequence[tuple[str, Any]]) -> list[str]:
    """Names of weights to look at, alike on all ranks: one of each kind first, then more until it is enough."""
    kinds: dict[str, list[str]] = {}
    sizes = {name: min(numel_of(p), weight_checksums.MAX_ELEMENTS) for name, p in named}
    for name in sizes:
        kinds.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    order = [
        same[i] for i in range(max(map(len, kinds.values()), default=0)) for same in kinds.values() if i < len(same)
    ]
    taken, total = [], 0
    for name in order:
        if total + sizes[name] <= MAX_TOTAL_ELEMENTS:
            taken.append(name)
            total += sizes[name]
    return taken


def record_weights(model: torch.nn.Module, dtypes: Sequence[torch.dtype]) -> dict[str, WeightRecord]:
    """All weights before `deepspeed.initialize`; sums for those that are chosen, in their own dtype and in `dtypes`."""
    named = list(model.named_parameters())
    looked, found = set(select_names(named)), {}
    waiting: list[tuple[str, str, torch.Tensor]] = []
    for name, parameter in named:
        sharded = shard_of(parameter) if name in looked else None
        found[name] = WeightRecord(
            shape_of(parameter),
            _dtype_name(parameter.dtype),
            parameter.requires_grad,
            hasattr(parameter, "ds_tensor"),
            None if sharded is None else {},
        )
        if sharded is not None:
            part, begin = sharded
            part = part[: max(0, weight_checksums.num_checked_elements(shape_of(parameter)) - begin)]
            for dtype in {part.dtype, *dtypes}:
                waiting.append(
                    (
                        name,
                        _dtype_name(dtype),
                        weight_checksums.compute_shard_checksum(part.to(dtype), begin, shape_of(parameter)),
                    )
                )
    for (name, dtype, _), (a, b) in zip(waiting, _transfer_checksums([s for *_, s in waiting]), strict=True):
        kept = found[name].checksums
        if kept is not None:
            kept[dtype] = (a, b)
    return found


def local_checksums(
    engine: Any, named: Mapping[str, Any], names: Sequence[str]
) -> dict[str, tuple[str, bool, tuple[int, int]]]:
    """Name -> (dtype, has AutoTP cut it, sum of what this rank holds of it); without those that cannot be read.

    `named`: the parameters of the engine's module.
    """
    cut = tp_layouts_of(engine, names)
    waiting = []
    for name in names:
        parameter = named.get(name)
        if parameter is None:
            continue
        if name in cut:
            made = _tp_shard_checksum(parameter, cut[name])
            if made is not None:
                waiting.append((name, _dtype_name(parameter.dtype), True, made))
            continue
        sharded = shard_of(parameter)
        if sharded is not None:
            part, begin = sharded
            waiting.append(
                (
                    name,
                    _dtype_name(part.dtype),
                    False,
                    weight_checksums.compute_shard_checksum(part, begin, shape_of(parameter)),
                )
            )
    values = _transfer_checksums([s for *_, s in waiting])
    return {name: (dtype, is_cut, v) for (name, dtype, is_cut, _), v in zip(waiting, values, strict=True)}


def tp_layouts_of(engine: Any, names: Sequence[str]) -> dict[str, TPLayout]:
    """What AutoTP has cut, and how; empty without it."""
    info = getattr(engine.module, UNIVERSAL_CHECKPOINT_INFO, None)
    if not info or engine.autotp_size() < 2:
        return {}
    return {name: cut for name, cut in tp_layouts(info, list(names)).items() if cut.dim is not None}


def _tp_shard_checksum(parameter: Any, cut: TPLayout) -> torch.Tensor | None:
    """None where the part is itself sharded (stage 3), scaled, or has rows that are too long to be looked at whole."""
    from deepspeed.utils import groups

    if hasattr(parameter, "ds_tensor"):
        return None
    rank = groups.get_tensor_model_parallel_rank()
    total = torch.zeros(2, dtype=torch.int64, device=parameter.device)
    most = weight_checksums.num_checked_elements(cut.shape)
    if most < cut.shape.numel() and most % cut.shape[1:].numel():
        return None
    for piece in cut.rank_layouts[rank]["pieces"]:
        if piece.get("scale", 1.0) != 1.0:
            return None
        (begin, strides), (here, strides_here) = piece["source"], piece["dest"]
        view = parameter.detach().as_strided(piece["shape"], strides_here, parameter.storage_offset() + here)
        rows = max(0, -(-(most - begin) // strides[0])) if strides[0] else len(view)
        total += weight_checksums.compute_checksum(view[:rows], begin, strides)
    return total


def _transfer_checksums(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """One transfer for all."""
    if not tensors:
        return []
    rows = torch.stack([t.cpu() for t in tensors] if len({t.device for t in tensors}) > 1 else list(tensors)).tolist()
    return [(a % (1 << 64), b % (1 << 64)) for a, b in rows]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def master_weights(engine: Any) -> list[torch.Tensor]:
    """What the optimizer steps on this rank: its own shards or copies, else the trained parameters themselves.

    Without what is swapped to NVMe: between steps its tensors are empty, or views of buffers that others fill
    (`runtime/swap_tensor/pipelined_optimizer_swapper.py` frees buffers and leaves the views).
    """
    optimizer = engine.optimizer
    for name in _MASTER_WEIGHT_ATTRIBUTES:
        if getattr(optimizer, name, None):
            return [m for i, m in enumerate(getattr(optimizer, name)) if not _is_on_nvme(optimizer, i)]
    if hasattr(optimizer, "fp32_groups_flat"):
        return list(optimizer.fp32_groups_flat)
    if hasattr(optimizer, "fp32_groups"):
        return [m for group in optimizer.fp32_groups for m in group]
    return [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]


def _is_on_nvme(optimizer: Any, group: int) -> bool:
    return bool(getattr(optimizer, "swap_optimizer", False)) and optimizer._swappable_optimizer_subgroup(group)


def parameter_groups_of(optimizer: Any) -> list[list[Any]]:
    """The model's own parameters as the optimizer has them in groups; at stage 3 in its sub-groups."""
    for name in ("bit16_groups", "bf16_groups", "fp16_groups"):
        if getattr(optimizer, name, None):
            return [list(group) for group in getattr(optimizer, name)]
    return [list(group["params"]) for group in optimizer.param_groups]


def sample_elements(tensors: Sequence[torch.Tensor], most: int = 1 << 13) -> torch.Tensor:
    """Up to so many elements spread evenly over all tensors, on the host, as float32."""
    total = sum(t.numel() for t in tensors)
    if not total:
        return torch.empty(0)
    stride = max(1, total // most)
    parts = [t.detach().reshape(-1)[::stride].float() for t in tensors if t.numel()]
    return torch.cat([p.cpu() for p in parts] if len({p.device for p in parts}) > 1 else parts).cpu().clone()


def iter_weights_of_class(model: torch.nn.Module, kind: type) -> Iterator[tuple[str, Any]]:
    """Modules of exactly this class with a weight of their own; not those of adapters."""
    for name, module in model.named_modules():
        if type(module) is kind and "lora_" not in name and getattr(module, "weight", None) is not None:
            yield name, module.weight
