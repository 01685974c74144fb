# SPDX-License-Identifier: Apache-2.0
"""The files of a tag folder by rank, and the layout of the parameters in them, for each of DeepSpeed's formats.

The layouts are DeepSpeed's own (`utils/zero_to_fp32.py` and `checkpoint/ds_to_universal.py` read the same keys).
Nothing is copied until a caller reads a tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.runtime.checkpoint.safe_load import load_shard
from harness.runtime.user_errors import user_error

WEIGHT = "fp32"
"""The key of a parameter itself among the optimizer's states: its fp32 master, where there is one."""


@dataclass(frozen=True)
class ShardedParam:
    """A parameter in these files. `read("fp32")` returns the weight as a contiguous tensor of its own, other
    names the optimizer's states of its shape."""

    shape: torch.Size
    read: Callable[[str], torch.Tensor]
    states: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParamGroup:
    """An optimizer group: its settings, and the names of its parameters."""

    options: dict[str, Any]
    names: list[str]


@dataclass
class RankParams:
    """All parameters of one tensor rank or stage."""

    trainable: dict[str, ShardedParam]
    frozen_and_buffers: dict[str, ShardedParam]
    """Frozen parameters and saved buffers."""
    tied: dict[str, str]
    model_states: dict[str, Any]
    """The first file of model states: counters, the schedule, DeepSpeed's description of the layers."""
    groups: list[list[str]] = field(default_factory=list)
    group_options: list[dict[str, Any]] = field(default_factory=list)
    """Of each optimizer group: learning rate, betas, weight decay."""
    step: int | None = None
    loss_scaler: dict[str, Any] = field(default_factory=dict)


def open_rank_params(
    files: RankFiles, stage: int, module: Mapping[str, torch.Tensor] | None, groups: list[list[str]] | None
) -> RankParams:
    """`module`: the weights, where the file of model states does not have them (a pipeline). `groups`: the names by
    optimizer group, which stage 0 needs for more than the weights.

    Raises UserError (CK105) when files are missing.
    """
    models = [load_shard(f) for f in files.models]
    head = models[0]
    weights = head["module"] if module is None else module
    if stage == 0:
        return _read_stage0(head, weights, groups)
    optimizers = [load_shard(f)["optimizer_state_dict"] for f in files.optimizers]
    _check_shard_count(files.models[0].parent, optimizers)
    shared = {str(k): str(v) for k, v in (head["shared_params"] or {}).items()}
    trainable, options, steps = (
        _read_stage3(head["param_shapes"], optimizers)
        if stage == 3
        else _read_stage12(head["param_shapes"], optimizers)
    )
    others = _read_frozen_params(models) if stage == 3 else {}
    for name in head["buffer_names"] if stage == 3 else weights:
        if name in weights and name not in trainable and name not in shared:
            others[name] = _whole_param(weights[name])
    scaler = {k: optimizers[0][k] for k in ("loss_scaler", "dynamic_loss_scale", "overflow") if k in optimizers[0]}
    return RankParams(
        trainable,
        others,
        shared,
        head,
        [list(g) for g in head["param_shapes"]],
        options,
        max(steps, default=None),
        scaler,
    )


def _whole_param(tensor: torch.Tensor) -> ShardedParam:
    return ShardedParam(tensor.shape, lambda _: tensor.clone(memory_format=torch.contiguous_format))


ZeroGroups = tuple[dict[str, ShardedParam], list[dict[str, Any]], list[int]]


def _read_stage12(groups: list[dict[str, Any]], optimizers: list[dict[str, Any]]) -> ZeroGroups:
    """Stages 1 and 2: each group is one flat vector, cut equally over the ranks; DeepSpeed notes which fragment of
    which parameter lies where in each rank's piece."""
    trainable: dict[str, ShardedParam] = {}
    steps: list[int] = []
    base = [o["base_optimizer_state"] for o in optimizers]
    for g, shapes in enumerate(groups):
        vectors = _flat_vectors(
            [o["single_partition_of_fp32_groups"][g] for o in optimizers], [b["state"].get(g) for b in base]
        )
        steps += _common_steps([b["state"].get(g) for b in base])
        for name, shape in shapes.items():
            fragments = [o["param_slice_mappings"][g].get(name) for o in optimizers]
            trainable[name] = _sharded_param(
                torch.Size(shape), vectors, [(f.start, f.numel) if f else (0, 0) for f in fragments]
            )
    return trainable, _options_by_vector(base[0]["param_groups"]), steps


def _read_stage3(groups: list[dict[str, Any]], optimizers: list[dict[str, Any]]) -> ZeroGroups:
    """Stage 3: every parameter is cut into equal pieces over the ranks (the last padded); a rank's pieces follow each
    other through the flat vector of its sub-group."""
    trainable: dict[str, ShardedParam] = {}
    steps: list[int] = []
    base = [o["optimizer_state_dict"] for o in optimizers]
    for g, shapes in enumerate(groups):
        vectors = _flat_vectors([o["fp32_flat_groups"][g] for o in optimizers], [b["state"].get(g) for b in base])
        steps += _common_steps([b["state"].get(g) for b in base])
        offset = 0
        for name, shape in shapes.items():
            piece = math.ceil(math.prod(shape) / len(optimizers))
            trainable[name] = _sharded_param(torch.Size(shape), vectors, [(offset, piece)] * len(optimizers))
            offset += piece
    return trainable, _options_by_vector(base[0]["param_groups"]), steps


def _common_steps(states: list[dict[str, Any] | None]) -> list[int]:
    """The counts of steps of a flat vector, which its ranks share. Raises UserError (CK120) where they do not."""
    counts = {step for state in states for step in _step_counts(state)}
    if len(counts) > 1:
        raise user_error(
            "CK120",
            f"the optimizer's shards are of steps {', '.join(map(str, sorted(counts)))}: two saves are mixed",
            fix="take another save: one that was killed leaves shards of the save before it",
        )
    return sorted(counts)


def _options_by_vector(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Settings for each flat vector: a group has one, at stage 3 one a sub-group."""
    return [_group_options(group) for group in groups for _ in group["params"]]


FlatVectors = dict[str, list[torch.Tensor]]


def _flat_vectors(weights: list[torch.Tensor], states: list[dict[str, Any] | None]) -> FlatVectors:
    """By state, the flat vector of each rank: the weights, and the optimizer's states that have an element for each.

    With padding a state is longer than the weights it belongs to.
    """
    vectors = {WEIGHT: weights}
    for key, value in (states[0] or {}).items():
        if torch.is_tensor(value) and value.dim() == 1 and value.numel() >= weights[0].numel() and value.numel() > 1:
            vectors[key] = [s[key] for s in states if s]
    return vectors


def _step_counts(state: dict[str, Any] | None) -> list[int]:
    return [int(state["step"])] if state and "step" in state else []


def _group_options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _sharded_param(shape: torch.Size, vectors: FlatVectors, spans: list[tuple[int, int]]) -> ShardedParam:
    """A parameter of which rank r has the elements at `spans[r]` = (start, count), in order; padding at the end."""

    def read(key: str) -> torch.Tensor:
        pieces = [
            vector[start : start + count] for vector, (start, count) in zip(vectors[key], spans, strict=True) if count
        ]
        return join_pieces(pieces, shape)

    return ShardedParam(shape, read, tuple(vectors))


def join_pieces(pieces: list[torch.Tensor], shape: torch.Size) -> torch.Tensor:
    """One tensor of `shape` out of its pieces in order; more elements than it has are padding. A copy."""
    numel = math.prod(shape)
    num_elements = sum(p.numel() for p in pieces)
    if num_elements < numel:
        raise user_error(
            "CK105",
            f"the checkpoint's shards have {num_elements} of the {numel} elements of a weight",
            notes=("shards are missing, or the optimizer was on NVMe when another program saved it",),
            fix="name another checkpoint",
        )
    out = torch.empty(numel, dtype=pieces[0].dtype if pieces else torch.float32)
    start = 0
    for piece in pieces:
        values = piece[: numel - start]
        out[start : start + values.numel()] = values
        start += values.numel()
    return out.view(shape)


def _read_frozen_params(models: list[dict[str, Any]]) -> dict[str, ShardedParam]:
    """Frozen parameters, at stage 3: sharded over the ranks."""
    params: dict[str, ShardedParam] = {}
    for name, shape in (models[0].get("frozen_param_shapes") or {}).items():
        pieces = [m["frozen_param_fragments"][name].flatten() for m in models]
        params[name] = _sharded_param(torch.Size(shape), {WEIGHT: pieces}, [(0, p.numel()) for p in pieces])
    return params


def _check_shard_count(folder: Path, optimizers: list[dict[str, Any]]) -> None:
    expected = optimizers[0]["partition_count"] if optimizers else 1
    count = max(expected) if isinstance(expected, list) else expected
    if count != len(optimizers):
        raise user_error(
            "CK105",
            f"`{folder}` has {len(optimizers)} optimizer shards, should have {count}",
            fix="name a complete checkpoint",
        )


def _read_stage0(
    head: dict[str, Any], module: Mapping[str, torch.Tensor], groups: list[list[str]] | None
) -> RankParams:
    """Stage 0: whole weights. Tied ones share memory under two names, of which the first counts. The fp32 masters and
    the optimizer's states need the names by group."""
    owners: dict[tuple[int, torch.Size], str] = {}
    shared: dict[str, str] = {}
    for name, tensor in module.items():
        owner = owners.setdefault((tensor.data_ptr(), tensor.shape), name) if tensor.numel() else name
        if owner != name:
            shared[name] = owner
    whole = {name: _whole_param(tensor) for name, tensor in module.items() if name not in shared}
    optimizer = head.get("optimizer")
    if groups is None or not optimizer:
        return RankParams(whole, {}, shared, head)
    base = optimizer.get("optimizer_state_dict", optimizer)
    trainable: dict[str, ShardedParam] = {}
    index = 0
    for g, names in enumerate(groups):
        if "fp32_groups_flat" in optimizer:
            masters = optimizer["fp32_groups_flat"][g]
            trainable.update(_split_flat_group(names, module, masters, base["state"].get(g)))
            continue
        for i, name in enumerate(names):
            weight = optimizer["fp32_groups"][g][i] if "fp32_groups" in optimizer else module[name]
            trainable[name] = _param_with_states(weight, base["state"].get(index))
            index += 1
    scaler = {k: v for k, v in optimizer.items() if k in ("cur_scale", "cur_iter", "last_overflow_iter")}
    steps = [s for state in base["state"].values() for s in _step_counts(state)]
    others = {n: p for n, p in whole.items() if n not in trainable}
    options = [_group_options(g) for g in base["param_groups"]]
    return RankParams(trainable, others, shared, head, groups, options, max(steps, default=None), scaler)


def _split_flat_group(
    names: list[str], module: Mapping[str, torch.Tensor], masters: torch.Tensor, state: dict[str, Any] | None
) -> dict[str, ShardedParam]:
    """A group that the fused wrapper stores as one flat vector of its parameters."""
    vectors, params, offset = _flat_vectors([masters], [state]), {}, 0
    for name in names:
        shape = module[name].shape
        params[name] = _sharded_param(shape, vectors, [(offset, math.prod(shape))])
        offset += math.prod(shape)
    return params


def _param_with_states(weight: torch.Tensor, state: dict[str, Any] | None) -> ShardedParam:
    states = {k: v for k, v in (state or {}).items() if torch.is_tensor(v) and v.shape == weight.shape}
    tensors = {WEIGHT: weight, **states}
    return ShardedParam(
        weight.shape, lambda key: tensors[key].clone(memory_format=torch.contiguous_format), tuple(tensors)
    )


_STATES_FILE = re.compile(r"(?:bf16_|fp16_)?(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_(model|optim)_states\.pt")
_LAYER_FILE = re.compile(r"layer_(\d+)(?:-model_(\d+))?-model_states\.pt")


@dataclass(frozen=True)
class RankFiles:
    """The files of one tensor rank, of the model or of a stage, in order of the data-parallel ranks that share its
    states.
    """

    models: list[Path] = field(default_factory=list)
    optimizers: list[Path] = field(default_factory=list)


def find_rank_files(folder: Path) -> list[RankFiles]:
    """In order of DeepSpeed's `mp_rank`: the tensor ranks, of one stage of a pipeline after the other.

    Raises UserError (CK105) if there are none.
    """
    by_model_rank: dict[int, dict[str, dict[int, Path]]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _STATES_FILE.fullmatch(path.name):
            data_rank, model_rank, kind = match.groups()
            kinds = by_model_rank.setdefault(int(model_rank), {"model": {}, "optim": {}})
            kinds[kind][int(data_rank or 0)] = path
    rank_files = [
        RankFiles(*([files[i] for i in sorted(files)] for files in by_model_rank[m].values()))
        for m in sorted(by_model_rank)
    ]
    if not rank_files or not all(r.models for r in rank_files):
        raise user_error("CK105", f"`{folder}` has no file `*_model_states.pt`", fix="name a complete checkpoint")
    return rank_files


def find_layer_files(folder: Path) -> list[tuple[int, int, Path]]:
    """The files of a pipeline's layers, with the number of the layer and the tensor rank; none for other models."""
    matches = ((_LAYER_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), int(match[2] or 0), path) for match, path in matches if match)
