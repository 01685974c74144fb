# SPDX-License-Identifier: Apache-2.0
"""The whole parameters of a checkpoint: shards of tensor ranks joined, stages of a pipeline in one map; and those of
DeepSpeed's universal layout: of our own conversions, of imports, and of `ds_to_universal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from harness import input_limits
from harness.checkpoints.manifest import UNIVERSAL, is_safe_path
from harness.errors import UserError, user_error
from harness.file_io import parse_json, read_regular
from harness.runtime.checkpoint.consolidate.layouts import (
    WEIGHT,
    ParamGroup,
    RankFiles,
    RankParams,
    ShardedParam,
    find_layer_files,
    find_rank_files,
    open_rank_params,
)
from harness.runtime.checkpoint.safe_load import load_file, load_param, load_shard
from harness.runtime.parallel.tensor_parallel import tp_layouts
from harness.runtime.pipeline.parameter_names import tied_names, to_transformers_name, to_transformers_parameter
from harness.runtime.pipeline.shard_rules import find_partition

GROUPS_FILE = "groups.json"


@dataclass(frozen=True)
class FullWeights:
    """The tensors by the names of `transformers`. `get` returns a contiguous tensor of its own: the weight, fp32 from
    the master weights where there are any, or one of the optimizer's states."""

    shapes: dict[str, torch.Size]
    get: Callable[..., torch.Tensor]
    """get(name), get(name, state)"""
    tied: dict[str, str]
    """Tied parameters: name -> the name under which the tensor is stored."""
    states: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of trainable parameters: `fp32` and the optimizer's states, as `get` takes them."""
    groups: list[ParamGroup] = field(default_factory=list)
    step: int | None = None
    """The optimizer's count of its steps."""
    model_states: dict[str, Any] = field(default_factory=dict)
    loss_scaler: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)


def rename_weights(weights: FullWeights, rename: Callable[[str], str]) -> FullWeights:
    """The same under other names."""
    original = {rename(name): name for name in weights.shapes}

    def get(name: str, key: str = WEIGHT) -> torch.Tensor:
        return weights.get(original[name], key)

    return replace(
        weights,
        shapes={rename(name): shape for name, shape in weights.shapes.items()},
        get=get,
        tied={rename(name): of and rename(of) for name, of in weights.tied.items()},
        states={rename(name): states for name, states in weights.states.items()},
        groups=[ParamGroup(group.options, [rename(name) for name in group.names]) for group in weights.groups],
    )


def open_checkpoint(folder: Path, manifest: Mapping[str, Any]) -> FullWeights:
    """All of a checkpoint of the harness. `manifest`: its fields; `degrees` and `shape` may be missing.

    Raises UserError (CK105 shards missing, CK120 not a shard, CK131 a layout that cannot be joined).
    """
    tag, stage = folder / manifest["tag"], int(manifest["zero_stage"])
    if manifest.get("layout") == UNIVERSAL:
        return open_universal(tag)
    with _refusing_damage(folder):
        groups = (manifest.get("shape") or {}).get("groups")
        degrees = manifest.get("degrees") or {}
        if degrees.get("pipeline", 1) > 1:
            config = AutoConfig.from_pretrained(folder / "huggingface", trust_remote_code=False)
            return _open_pipeline(tag, stage, groups, config, int(degrees.get("tensor", 1)))
        return open_weights(tag, stage, groups[0] if groups else None)


def open_universal(folder: Path) -> FullWeights:
    """A folder of the universal layout. Raises UserError (CK105, CK120)."""
    with _refusing_damage(folder):
        params = read_universal_params(folder)
        return _build_weights(params.trainable, params.frozen_and_buffers, params)


def open_weights(folder: Path, stage: int, groups: list[list[str]] | None = None) -> FullWeights:
    """A checkpoint's tag folder, of any tensor degree, without a pipeline. `groups`: names by optimizer group, which
    stage 0 needs for more than the weights. Raises UserError (CK105, CK120, CK131).
    """
    tp_ranks = [open_rank_params(files, stage, None, groups) for files in find_rank_files(folder)]
    first = tp_ranks[0]
    if len(tp_ranks) == 1:
        return _build_weights(first.trainable, first.frozen_and_buffers, first)
    layouts = tp_layouts(first.model_states["universal_checkpoint_info"], [*first.trainable, *first.frozen_and_buffers])

    def join(shards: list[ShardedParam], name: str) -> ShardedParam:
        if name not in layouts:
            return shards[0]
        layout = layouts[name]
        return ShardedParam(
            layout.shape, lambda key: layout.join_shards([shard.read(key) for shard in shards]), shards[0].states
        )

    trainable = {n: join([r.trainable[n] for r in tp_ranks], n) for n in first.trainable}
    # DeepSpeed also stores a tied weight under its second name, as each rank's shard of it.
    others = {
        n: join([r.frozen_and_buffers[n] for r in tp_ranks], n)
        for n in first.frozen_and_buffers
        if n in layouts or n not in first.model_states["module"]
    }
    absent = [n for n in first.frozen_and_buffers if n not in others]
    return _build_weights(trainable, others, first, dict.fromkeys(absent, ""))


def _build_weights(
    trainable: dict[str, ShardedParam],
    others: dict[str, ShardedParam],
    first: RankParams,
    shared: dict[str, str] | None = None,
) -> FullWeights:
    params = {**trainable, **others}
    _check_names(params)

    def get(name: str, key: str = WEIGHT) -> torch.Tensor:
        with _refusing_damage(name):
            return params[name].read(key)

    groups = [ParamGroup(o, names) for o, names in zip(first.group_options, first.groups, strict=False)]
    return FullWeights(
        {name: param.shape for name, param in params.items()},
        get,
        {**first.tied, **(shared or {})},
        {name: param.states for name, param in trainable.items() if param.states},
        groups,
        first.step,
        first.model_states,
        first.loss_scaler,
    )


def _check_names(params: Mapping[str, ShardedParam]) -> None:
    """Names become folders of a converted checkpoint, and states its files: none may lead out of it. Raises UserError
    (CK120).
    """
    names = [*params, *(state for param in params.values() for state in param.states)]
    wrong = next((name for name in names if not (isinstance(name, str) and is_safe_path(name))), None)
    if wrong is not None:
        raise _damage_error("the checkpoint", f"it has a parameter or a state {wrong!r}, which is no name")


@contextmanager
def _refusing_damage(what: Path | str) -> Iterator[None]:
    """Raises UserError (CK120) where the content of shards is not what DeepSpeed writes."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:  # content of any type provokes almost anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise _damage_error(f"`{what}`", f"its shards are not as DeepSpeed writes them: {reason}") from error


def _damage_error(what: str, reason: str) -> UserError:
    return user_error("CK120", f"{what} cannot be read: {reason}", fix="name another checkpoint")


def _open_pipeline(
    folder: Path, stage: int, groups: list[list[list[str]]] | None, config: PreTrainedConfig, tensor_size: int
) -> FullWeights:
    """Each tensor rank of a stage has files of its own; at ZeRO stage 0 each of its layers has one, from data rank 0 of
    its stage.
    """
    modules: list[dict[str, torch.Tensor]] = [{} for _ in range(tensor_size)]
    for layer, rank, path in find_layer_files(folder):
        modules[rank].update({to_transformers_name(config, layer, n): t for n, t in load_shard(path).items()})
    trainable: dict[str, ShardedParam] = {}
    frozen_and_buffers: dict[str, ShardedParam] = {}
    stages: list[RankParams] = []
    rank_files = find_rank_files(folder)
    for i in range(len(rank_files) // tensor_size):
        tensor_ranks = [
            _open_stage(files, stage, module, groups[i] if groups else None, config)
            for files, module in zip(rank_files[i * tensor_size : (i + 1) * tensor_size], modules, strict=True)
        ]
        params = _join_tensor_ranks(tensor_ranks, config)
        stages.append(params)
        # A tied embedding is in the optimizers of both its stages, with equal values.
        trainable = {**params.trainable, **trainable}
        frozen_and_buffers = {**params.frozen_and_buffers, **frozen_and_buffers}
    first = stages[0]
    names = [[n for s in stages if g < len(s.groups) for n in s.groups[g]] for g in range(len(first.groups))]
    merged = RankParams(
        trainable, {}, tied_names(config), first.model_states, names, first.group_options, first.step, first.loss_scaler
    )
    others = {n: p for n, p in frozen_and_buffers.items() if n not in trainable and n not in merged.tied}
    return _build_weights(trainable, others, merged)


def _join_tensor_ranks(ranks: list[RankParams], config: PreTrainedConfig) -> RankParams:
    """One stage, its weights whole."""
    if len(ranks) == 1:
        return ranks[0]

    def join(shards: list[ShardedParam], name: str) -> ShardedParam:
        partition = find_partition(config, name, shards[0].shape, len(shards))
        if partition is None:
            return shards[0]
        return ShardedParam(
            torch.Size(partition.shape),
            lambda key: partition.join_shards([shard.read(key) for shard in shards]),
            shards[0].states,
        )

    joined = ranks[0]
    joined.trainable = {n: join([r.trainable[n] for r in ranks], n) for n in joined.trainable}
    joined.frozen_and_buffers = {
        n: join([r.frozen_and_buffers[n] for r in ranks], n) for n in joined.frozen_and_buffers
    }
    return joined


def _open_stage(
    files: RankFiles,
    stage: int,
    module: dict[str, torch.Tensor],
    groups: list[list[str]] | None,
    config: PreTrainedConfig,
) -> RankParams:
    """One tensor rank of a stage under the names of `transformers`; `module` and `groups` have these already."""
    params = open_rank_params(files, stage, module, groups)
    if stage == 0:
        return params
    params.trainable = {to_transformers_parameter(config, n): p for n, p in params.trainable.items()}
    params.groups = [[to_transformers_parameter(config, n) for n in names] for names in params.groups]
    params.frozen_and_buffers = {n: p for n, p in params.frozen_and_buffers.items() if n not in params.trainable}
    return params


def read_universal_params(folder: Path) -> RankParams:
    """All parameters below `folder/zero`. Raises UserError (CK105 a parameter without `fp32.pt`, CK120)."""
    heads = sorted(folder.glob("*mp_rank_00_model_states.pt"))
    if not heads:
        raise user_error("CK105", f"`{folder}` has no file `*_model_states.pt`", fix="name a complete checkpoint")
    head = load_shard(heads[0])
    groups, step = _read_groups(folder, head)
    trained = {name for group in groups for name in group.names}
    trainable, others = dict[str, ShardedParam](), dict[str, ShardedParam]()
    for entry in sorted((folder / "zero").iterdir()):
        if not entry.is_dir():
            continue
        files = {file.stem: file for file in entry.glob("*.pt")}
        if WEIGHT not in files:
            raise user_error("CK105", f"`{entry}` has no `{WEIGHT}.pt`", fix="name a complete checkpoint")
        if step is None and "step" in files:
            step = int(load_file(files["step"], mmap=True))
        states = tuple(key for key in files if key != "step") if entry.name in trained or not trained else ()
        param = ShardedParam(load_param(files[WEIGHT]).shape, _reader(entry), states)
        (trainable if states else others)[entry.name] = param
    shared = {str(name): str(of) for name, of in (head.get("shared_params") or {}).items()}
    options = [group.options for group in groups]
    return RankParams(trainable, others, shared, head, [g.names for g in groups], options, step)


def _reader(entry: Path) -> Any:
    def read(key: str) -> torch.Tensor:
        return load_param(entry / f"{key}.pt").clone(memory_format=torch.contiguous_format)

    return read


def _read_groups(folder: Path, head: dict[str, Any]) -> tuple[list[ParamGroup], int | None]:
    """Names and options by group: from our own file, or from DeepSpeed's description of the shards."""
    if (folder / GROUPS_FILE).exists():
        body = parse_json(read_regular(folder / GROUPS_FILE, input_limits.RUN_FILE, follow=False))
        return [ParamGroup(group["options"], group["names"]) for group in body["groups"]], body["step"]
    state = load_shard(folder / "zero" / "optimizer_state.pt")
    options = state.get("param_groups") or state.get("optimizer_state_dict", {}).get("param_groups") or []
    shapes = head.get("param_shapes") or []
    plain = [  # one for each flat vector: a group has several at stage 3, by sub-groups
        {key: value for key, value in group.items() if key != "params"}
        for group in options
        for _ in group.get("params") or (0,)
    ]
    return [ParamGroup(one, list(names)) for one, names in zip(plain, shapes, strict=False)], None
