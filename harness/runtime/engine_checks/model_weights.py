# SPDX-License-Identifier: Apache-2.0
"""This rank's shards of the model's weights and of the master weights, wherever ZeRO, AutoTP and a pipeline put them.

Reads only, and gathers nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_INFO

from harness.runtime.engine_checks import weight_checksums
from harness.runtime.engine_protocol import Engine, EngineOptimizer
from harness.runtime.parallel.tensor_parallel import TPLayout, tp_layouts

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from harness.runtime.pipeline.shard_rules import WeightPartition
from typing import TYPE_CHECKING

MAX_TOTAL_ELEMENTS = 1 << 16
"""Elements that a rank reads at once, over all weights."""
_MASTER_WEIGHT_ATTRIBUTES = (
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
    "fp32_groups_flat_partition",
)

MODULE_CLASSES = {"Embedding": torch.nn.Embedding, "Linear": torch.nn.Linear}
_WIDTH = 48
_MAX_MODULES, _MAX_ELEMENTS = 6, 1 << 12


@dataclass(frozen=True, slots=True)
class WeightRecord:
    """A weight before `deepspeed.initialize`: `checksums` by dtype, of this rank's shard if it `is_sharded`."""

    shape: tuple[int, ...]
    dtype: str
    is_trainable: bool
    is_sharded: bool
    checksums: dict[str, tuple[int, int]] | None


def shape_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """The shape of the whole weight, before AutoTP. At stage 3 a parameter is empty outside its forward."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def numel_of(parameter: torch.Tensor) -> int:
    """The number of elements of the whole weight."""
    return int(torch.Size(shape_of(parameter)).numel())


def shard_of(parameter: torch.Tensor) -> tuple[torch.Tensor, int] | None:
    """(this rank's flat shard, its offset in the whole); None while it is on NVMe or quantized."""
    shard = getattr(parameter, "ds_tensor", None)
    if shard is None:
        return (parameter.detach().reshape(-1), 0) if parameter.is_contiguous() else None
    if shard.numel() == 0 or not shard.is_floating_point() or "NOT_AVAILABLE" in str(getattr(shard, "status", "")):
        return None
    group = getattr(parameter, "ds_process_group", None)
    rank = torch.distributed.get_rank(group) if group is not None else torch.distributed.get_rank()
    start = rank * int(shard.ds_numel)
    return shard.detach().reshape(-1)[: max(0, numel_of(parameter) - start)], start  # the last shard is padded


def select_names(named_parameters: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
    """The names of the weights to compare, the same on all ranks: one of each kind first, then more up to the limit."""
    kinds: dict[str, list[str]] = {}
    sizes = {name: min(numel_of(p), weight_checksums.MAX_ELEMENTS) for name, p in named_parameters}
    for name in sizes:
        kinds.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    ordered_names = [
        names[i] for i in range(max(map(len, kinds.values()), default=0)) for names in kinds.values() if i < len(names)
    ]
    selection, total = [], 0
    for name in ordered_names:
        if total + sizes[name] <= MAX_TOTAL_ELEMENTS:
            selection.append(name)
            total += sizes[name]
    return selection


def record_weights(model: torch.nn.Module, dtypes: Sequence[torch.dtype]) -> dict[str, WeightRecord]:
    """All weights before `deepspeed.initialize`. Those of `select_names` get checksums, by their dtype and `dtypes`."""
    named_parameters = list(model.named_parameters())
    checked_names, records = set(select_names(named_parameters)), {}
    entries: list[tuple[str, str, torch.Tensor]] = []
    for name, parameter in named_parameters:
        shard = shard_of(parameter) if name in checked_names else None
        records[name] = WeightRecord(
            shape_of(parameter),
            name_of_dtype(parameter.dtype),
            parameter.requires_grad,
            hasattr(parameter, "ds_tensor"),
            None if shard is None else {},
        )
        if shard is not None:
            values, start = shard
            values = values[: max(0, weight_checksums.num_checked_elements(shape_of(parameter)) - start)]
            for dtype in {values.dtype, *dtypes}:
                entries.append(
                    (
                        name,
                        name_of_dtype(dtype),
                        weight_checksums.compute_shard_checksum(values.to(dtype), start, shape_of(parameter)),
                    )
                )
    for (name, dtype_name, _), (a, b) in zip(entries, _transfer_checksums([s for *_, s in entries]), strict=True):
        checksums = records[name].checksums
        if checksums is not None:
            checksums[dtype_name] = (a, b)
    return records


def local_checksums(
    engine: Engine, parameters: Mapping[str, torch.Tensor], names: Sequence[str]
) -> dict[str, tuple[str, bool, tuple[int, int]]]:
    """Name -> (dtype, is it cut by AutoTP, checksum of this rank's shard), without weights that cannot be read.

    `parameters`: those of the engine's module, by name.
    """
    layouts = tp_layouts_of(engine, names)
    entries = []
    for name in names:
        parameter = parameters.get(name)
        if parameter is None:
            continue
        if name in layouts:
            checksum = _tp_shard_checksum(parameter, layouts[name])
            if checksum is not None:
                entries.append((name, name_of_dtype(parameter.dtype), True, checksum))
            continue
        shard = shard_of(parameter)
        if shard is not None:
            values, start = shard
            entries.append(
                (
                    name,
                    name_of_dtype(values.dtype),
                    False,
                    weight_checksums.compute_shard_checksum(values, start, shape_of(parameter)),
                )
            )
    checksums = _transfer_checksums([s for *_, s in entries])
    return {name: (dtype, is_cut, v) for (name, dtype, is_cut, _), v in zip(entries, checksums, strict=True)}


def tp_layouts_of(engine: Engine, names: Sequence[str]) -> dict[str, TPLayout]:
    """The layouts of the weights that AutoTP has cut; empty without AutoTP."""
    info = getattr(engine.module, UNIVERSAL_CHECKPOINT_INFO, None)
    if not info or engine.autotp_size() < 2:
        return {}
    return {name: layout for name, layout in tp_layouts(info, list(names)).items() if layout.dim is not None}


def stage_partition(engine: Engine, name: str) -> WeightPartition | None:
    """The partition of a weight that a tensor group of a pipeline stage shards; None for all others."""
    find_partition = getattr(engine.module, "partition_of", None)  # the harness's own pipeline has it
    return None if find_partition is None else cast("WeightPartition | None", find_partition(name))


def _tp_shard_checksum(parameter: torch.Tensor, layout: TPLayout) -> torch.Tensor | None:
    """None where the part is sharded (stage 3), scaled, or has rows that are too long to read whole."""
    from deepspeed.utils import groups

    if hasattr(parameter, "ds_tensor"):
        return None
    rank = groups.get_tensor_model_parallel_rank()
    total = torch.zeros(2, dtype=torch.int64, device=parameter.device)
    num_elements = weight_checksums.num_checked_elements(layout.shape)
    if num_elements < layout.shape.numel() and num_elements % layout.shape[1:].numel():
        return None
    for piece in layout.rank_layouts[rank]["pieces"]:
        if piece.get("scale", 1.0) != 1.0:
            return None
        (source_begin, source_strides), (dest_begin, dest_strides) = piece["source"], piece["dest"]
        view = parameter.detach().as_strided(piece["shape"], dest_strides, parameter.storage_offset() + dest_begin)
        rows = max(0, -(-(num_elements - source_begin) // source_strides[0])) if source_strides[0] else len(view)
        total += weight_checksums.compute_checksum(view[:rows], source_begin, source_strides)
    return total


def _transfer_checksums(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Copy all checksums to the host in one transfer."""
    if not tensors:
        return []
    rows = torch.stack([t.cpu() for t in tensors] if len({t.device for t in tensors}) > 1 else list(tensors)).tolist()
    return [(a % (1 << 64), b % (1 << 64)) for a, b in rows]


def name_of_dtype(dtype: torch.dtype) -> str:
    """`bfloat16` of `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def master_weights(engine: Engine) -> list[torch.Tensor]:
    """The tensors that the optimizer steps on this rank: its own shards or copies, else the parameters themselves.

    Without those that are swapped to NVMe: between steps its tensors are empty, or views of buffers that others fill
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


def parameter_groups_of(optimizer: EngineOptimizer) -> list[list[torch.nn.Parameter]]:
    """The model's parameters by group of the optimizer, at stage 3 by sub-group."""
    for name in ("bit16_groups", "bf16_groups", "fp16_groups"):
        if getattr(optimizer, name, None):
            return [list(group) for group in getattr(optimizer, name)]
    return [list(group["params"]) for group in optimizer.param_groups]


def sample_elements(tensors: Sequence[torch.Tensor], max_elements: int = 1 << 13) -> torch.Tensor:
    """Up to `max_elements` elements, evenly over all tensors, on the host, as float32."""
    total = sum(t.numel() for t in tensors)
    if not total:
        return torch.empty(0)
    stride = max(1, total // max_elements)
    parts = [t.detach().reshape(-1)[::stride].float() for t in tensors if t.numel()]
    return torch.cat([p.cpu() for p in parts] if len({p.device for p in parts}) > 1 else parts).cpu().clone()


def iter_weights_of_class(model: torch.nn.Module, kind: type) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, weight) of the modules of exactly this class, without adapters."""
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if type(module) is kind and "lora_" not in name and weight is not None:
            yield name, weight


@dataclass(frozen=True, slots=True)
class WeightStats:
    """Count, sum and sum of squares of some elements."""

    count: float
    total: float
    squares: float

    @property
    def std(self) -> float:
        """The standard deviation."""
        mean = self.total / max(1.0, self.count)
        return float(max(0.0, self.squares / max(1.0, self.count) - mean * mean) ** 0.5)


def compute_reference_stats(model: torch.nn.Module, config: PreTrainedConfig | None) -> dict[str, WeightStats]:
    """Statistics of a new module after the model's `_init_weights`, by class. Restores the random state.

    A model without `_init_weights` (a pipeline) has the `initializer_range` of its configuration.
    """
    stats: dict[str, WeightStats] = {}
    init_weights = getattr(model, "_init_weights", None)
    if init_weights is None:
        initializer_range = getattr(config, "initializer_range", None)
        range_stats = WeightStats(1.0, 0.0, float(initializer_range) ** 2) if initializer_range else None
        return dict.fromkeys(MODULE_CLASSES, range_stats) if range_stats else {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for name, kind in MODULE_CLASSES.items():
            module = kind(_WIDTH, _WIDTH)
            before = module.weight.detach().clone()
            init_weights(module)
            if not torch.equal(before, module.weight):
                stats[name] = _stats_of(module.weight)
    return stats


def compute_model_stats(model: torch.nn.Module) -> dict[str, list[float]]:
    """(count, sum, sum of squares) of this rank's shards of some modules, by class. They add up over ranks."""
    stats: dict[str, list[float]] = {}
    for name, kind in MODULE_CLASSES.items():
        weights = [w for _, w in iter_weights_of_class(model, kind)]
        step = max(1, len(weights) // _MAX_MODULES)
        parts = [shard[0] for w in weights[::step] if (shard := shard_of(w)) is not None]
        part_stats = [_stats_of(part[:: max(1, part.numel() // _MAX_ELEMENTS)]) for part in parts if part.numel()]
        if part_stats:
            stats[name] = [
                sum(s.count for s in part_stats),
                sum(s.total for s in part_stats),
                sum(s.squares for s in part_stats),
            ]
    return stats


def _stats_of(tensor: torch.Tensor) -> WeightStats:
    values = tensor.detach().double()
    return WeightStats(float(values.numel()), float(values.sum()), float((values * values).sum()))
