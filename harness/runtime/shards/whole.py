"""The parameters of a checkpoint, whole: parts of tensor ranks joined, stages of a pipeline under one roof."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from harness.runtime.pipeline.names import tied_names, transformers_name, transformers_parameter
from harness.runtime.shards.files import RankFiles, layers_in, load, ranks_in
from harness.runtime.shards.layouts import WEIGHT, Part, Slice, open_slice
from harness.runtime.tensor_parallel import cuts


@dataclass(frozen=True)
class Group:
    """An optimizer group: its settings, and the names of its parameters."""

    options: dict[str, Any]
    names: list[str]


@dataclass(frozen=True)
class Weights:
    """The tensors by the names of `transformers`. `get` returns a contiguous tensor of its own: the weight, fp32 from
    the master weights where there are any, or one of the optimizer's states."""

    shapes: dict[str, torch.Size]
    get: Callable[..., torch.Tensor]
    """get(name), get(name, state)"""
    shared: dict[str, str]
    """Tied parameters: name -> the name under which the tensor is stored."""
    states: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of trained parameters: `fp32` and the optimizer's states that can be asked for."""
    groups: list[Group] = field(default_factory=list)
    step: int | None = None
    """The optimizer's count of its steps."""
    head: dict[str, Any] = field(default_factory=dict)
    scaler: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)


def open_checkpoint(folder: Path, manifest: Mapping[str, Any]) -> Weights:
    """All of a checkpoint of ours. `manifest`: its fields; `degrees` and `shape` may be missing.

    Raises Refused (CK105 shards missing, CK120 not a shard, CK131 a layout that cannot be put together).
    """
    tag, stage = folder / manifest["tag"], int(manifest["zero_stage"])
    groups = (manifest.get("shape") or {}).get("groups")
    if (manifest.get("degrees") or {}).get("pipeline", 1) > 1:
        config = AutoConfig.from_pretrained(folder / "huggingface", trust_remote_code=False)
        return _pipeline(tag, stage, groups, config)
    return open_weights(tag, stage, groups[0] if groups else None)


def open_weights(folder: Path, stage: int, groups: list[list[str]] | None = None) -> Weights:
    """A checkpoint's tag folder, of any tensor degree, without a pipeline. `groups`: names by optimizer group, which
    stage 0 needs for more than the weights. Raises Refused (CK105, CK120, CK131).
    """
    slices = [open_slice(files, stage, None, groups) for files in ranks_in(folder)]
    if len(slices) == 1:
        return _weights(slices[0].trained, slices[0].others, slices[0])
    first = slices[0]
    found = cuts(first.head["universal_checkpoint_info"], [*first.trained, *first.others])

    def join(parts: list[Part], name: str) -> Part:
        if name not in found:
            return parts[0]
        cut = found[name]
        return Part(cut.shape, lambda key: cut.join([part.read(key) for part in parts]), parts[0].states)

    trained = {n: join([s.trained[n] for s in slices], n) for n in first.trained}
    # A tied weight is stored once more under its second name, as each rank's part of it.
    others = {
        n: join([s.others[n] for s in slices], n) for n in first.others if n in found or n not in first.head["module"]
    }
    dropped = [n for n in first.others if n not in others]
    return _weights(trained, others, first, dict.fromkeys(dropped, ""))


def _weights(
    trained: dict[str, Part], others: dict[str, Part], first: Slice, shared: dict[str, str] | None = None
) -> Weights:
    parts = {**trained, **others}
    groups = [Group(o, names) for o, names in zip(first.options, first.groups, strict=False)]
    return Weights(
        {name: part.shape for name, part in parts.items()},
        lambda name, key=WEIGHT: parts[name].read(key),
        {**first.shared, **(shared or {})},
        {name: part.states for name, part in trained.items() if part.states},
        groups,
        first.step,
        first.head,
        first.scaler,
    )


def _pipeline(folder: Path, stage: int, groups: list[list[list[str]]] | None, config: Any) -> Weights:
    """Each stage has files of its own; at stage 0 weights are in a file a layer, from data rank 0 of its stage."""
    module: dict[str, torch.Tensor] = {}
    for layer, path in layers_in(folder):
        module.update({transformers_name(config, layer, n): t for n, t in load(path).items()})
    trained: dict[str, Part] = {}
    everything: dict[str, Part] = {}
    slices = []
    for i, files in enumerate(ranks_in(folder)):
        one = _renamed(files, stage, module, groups[i] if groups else None, config)
        slices.append(one)
        # A tied embedding is in the optimizers of both its stages, with equal values.
        trained = {**one.trained, **trained}
        everything = {**one.others, **everything}
    first = slices[0]
    names = [[n for s in slices if g < len(s.groups) for n in s.groups[g]] for g in range(len(first.groups))]
    merged = Slice(trained, {}, tied_names(config), first.head, names, first.options, first.step, first.scaler)
    others = {n: p for n, p in everything.items() if n not in trained and n not in merged.shared}
    return _weights(trained, others, merged)


def _renamed(
    files: RankFiles, stage: int, module: dict[str, torch.Tensor], groups: list[list[str]] | None, config: Any
) -> Slice:
    """One stage under the names of `transformers`; `module` and `groups` have these already."""
    found = open_slice(files, stage, module, groups)
    if stage == 0:
        return found
    found.trained = {transformers_parameter(config, n): p for n, p in found.trained.items()}
    found.groups = [[transformers_parameter(config, n) for n in names] for names in found.groups]
    found.others = {n: p for n, p in found.others.items() if n not in found.trained}
    return found
