# SPDX-License-Identifier: Apache-2.0
"""A save of DeepSpeed's that another program made, as whole tensors by name: any ZeRO stage, or universal.

An optimizer at stage 0 numbers parameters group by group, and its shards have no names. Orders that programs use are
tried, and one counts only if each number has the shape of its parameter's state, and each fp32 master, where there are
any, the values of its 16-bit weight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from harness.errors import UserError, user_error
from harness.runtime.checkpoint.consolidate import WEIGHT, FullWeights, open_universal, open_weights, rename_weights
from harness.runtime.checkpoint.consolidate.layouts import find_layer_files, find_rank_files
from harness.runtime.checkpoint.safe_load import find_unsafe_globals, load_shard, unsafe_file_error

_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)|(?:^|\.)ln_\w+\.")
"""`transformers/trainer.py:get_decay_parameter_names`, and the layer norms that it knows by their class."""


@dataclass(frozen=True)
class ForeignSave:
    """An open save. `stage` and `ranks` are those of the writer; steps include `skipped` ones."""

    tag: Path
    weights: FullWeights
    stage: int
    ranks: int
    dtype: str
    step: int
    samples: int
    skipped: int
    counts_in_tensor: bool = False
    """Does the writer's optimizer count its steps in a tensor, as those of torch do?"""


def refuse_code(tag: Path) -> None:
    """Look at the names in all pickles of the save; nothing of them is run. Raises UserError (CK111, CK120)."""
    for file in sorted(tag.rglob("*.pt")):
        unsafe = find_unsafe_globals(file)
        if unsafe:
            raise unsafe_file_error(file, unsafe)


def open_save(tag: Path, *, with_states: bool = True) -> ForeignSave:
    """The save in the folder `tag`. `with_states`: of the optimizer, too.

    Raises UserError (CK105 shards missing, CK111 code in a shard, CK120 no shard, CK131 a layout that nobody joins).
    """
    refuse_code(tag)
    try:
        return _open_save(tag, with_states=with_states)
    except (UserError, OSError):
        raise
    except Exception as error:  # content of any type provokes almost anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        message = f"`{tag}` cannot be read: its shards are not as DeepSpeed writes them: {reason}"
        raise user_error("CK120", message, fix="name another checkpoint") from None


def _open_save(tag: Path, *, with_states: bool) -> ForeignSave:
    if (tag / "zero").is_dir():
        return _describe(tag, open_universal(tag), 0)
    if not tag.is_dir():
        raise user_error("CK105", f"`{tag}` is not there", fix="name a complete checkpoint")
    if find_layer_files(tag):
        raise user_error(
            "CK131",
            f"`{tag}` is of a pipeline: its layers are numbered, and their names are those of the program's own code",
            fix="convert it to the universal layout in that program, or take its weights alone",
        )
    files = find_rank_files(tag)
    heads = [load_shard(rank.models[0]) for rank in files]
    stage = _stage_of(files)
    groups = None
    if stage == 0 and with_states and heads[0].get("optimizer"):
        groups = name_groups(heads[0]["optimizer"], _without_aliases(heads[0]))
    weights = open_weights(tag, stage, groups)
    state = load_shard(files[0].optimizers[0]) if files[0].optimizers else heads[0].get("optimizer")
    return replace(_describe(tag, weights, stage), counts_in_tensor=_counts_in_tensor(state))


def _counts_in_tensor(state: Any, depth: int = 0) -> bool:
    """Is there a count of steps that is a tensor?"""
    if not isinstance(state, dict) or depth > 6:
        return False
    return torch.is_tensor(state.get("step")) or any(_counts_in_tensor(each, depth + 1) for each in state.values())


def _without_aliases(head: dict[str, Any]) -> dict[str, Any]:
    """The weights of a module, tied ones once, without buffers."""
    owners: dict[tuple[int, Any], str] = {}
    buffers = set(head.get("buffer_names") or ())
    for name, tensor in head["module"].items():
        if name not in buffers and tensor.numel():
            owners.setdefault((tensor.data_ptr(), tensor.shape), name)
    return {name: head["module"][name] for name in owners.values()}


def _stage_of(files: list[Any]) -> int:
    if "zero_pp_rank" in files[0].models[0].name:
        return 3
    if not files[0].optimizers:
        return 0
    state = load_shard(files[0].optimizers[0]).get("optimizer_state_dict")
    stage = state.get("zero_stage") if isinstance(state, dict) else None
    if stage is None and isinstance(state, dict) and "param_slice_mappings" in state:
        return 1  # DeepSpeed's wrapper for bf16 does not write its stage, and its shards are cut as those of stage 1
    if stage is None:
        raise user_error(
            "CK131",
            f"`{files[0].optimizers[0]}` does not say its ZeRO stage",
            fix="convert it to the universal layout with `ds_to_universal`, and import that",
        )
    return int(stage)


_WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
"""What DDP, `torch.compile` and peft put before every name; a run of the harness has none of them."""


def _without_wrappers(weights: FullWeights) -> FullWeights:
    """The same under the model's own names."""
    start = 0
    names = list(weights.shapes)
    while prefix := next((p for p in _WRAPPERS if names and all(n.startswith(p, start) for n in names)), ""):
        start += len(prefix)
    return rename_weights(weights, lambda name: name[start:]) if start else weights


def _describe(tag: Path, weights: FullWeights, stage: int) -> ForeignSave:
    head = weights.model_states
    counts = {key: head.get(key) for key in ("global_steps", "skipped_steps", "dp_world_size")}
    counts["global_samples"] = head.get("global_samples", 0)
    wrong = [key for key, value in counts.items() if type(value) is not int or not 0 <= value < 2**63]
    if wrong:
        raise user_error("CK120", f"`{tag}` has no usable `{wrong[0]}`", fix="name another checkpoint")
    first = next(iter(weights.states or weights.shapes), None)
    if first is None:
        raise user_error("CK120", f"`{tag}` has no parameters", fix="name another checkpoint")
    return ForeignSave(
        tag, _without_wrappers(weights), stage, int(head["dp_world_size"]), _dtype_of(weights, first),
        int(head["global_steps"]), int(counts["global_samples"] or 0), int(head["skipped_steps"]),
    )  # fmt: skip


def _dtype_of(weights: FullWeights, name: str) -> str:
    """The format that the writer trained in: of a weight in the model's own state, else of its configuration."""
    module = weights.model_states.get("module")
    tensor = module.get(name) if isinstance(module, dict) else None
    if tensor is not None:
        return str(tensor.dtype).removeprefix("torch.")
    config = weights.model_states.get("ds_config")
    config = config if isinstance(config, dict) else {}
    for key, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if isinstance(config.get(key), dict) and config[key].get("enabled") is True:
            return dtype
    return str(weights.get(name, WEIGHT).dtype).removeprefix("torch.") if not config else "float32"


def name_groups(optimizer: Mapping[str, Any], module: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """The names by group. `module`: all weights in the model's order, tied ones under their first name.

    Raises UserError (CK131) where no known order fits, or several do.
    """
    wanted = _numbered_shapes(optimizer)
    found: list[list[list[str]]] = []
    for order in _orders(list(module), module):
        groups = [group for group in order if group] if len(order) != len(wanted) else order
        if groups not in found and _fits(groups, wanted, module):
            found.append(groups)
    alike = [groups for groups in found if _holds_masters(groups, optimizer, module)]
    if len(alike) == 1:
        return alike[0]
    reason = "no order of groups that a program uses" if not alike else f"{len(alike)} orders of its groups fit"
    if found and not alike:
        reason = "by no order of groups that a program uses its fp32 masters are those of the 16-bit weights beside it"
    raise user_error(
        "CK131",
        f"the optimizer numbers its parameters, and their names are not known: {reason}",
        notes=("at ZeRO stage 0 a save of DeepSpeed has no names beside the states",),
        fix="import with `--drop-optimizer-states`, or save once at ZeRO stage 1 in the program that wrote it",
    )


def _holds_masters(groups: list[list[str]], optimizer: Mapping[str, Any], module: Mapping[str, torch.Tensor]) -> bool:
    """Is each weight its fp32 master, rounded? True where the optimizer has no masters of its own."""
    flat = optimizer.get("fp32_groups_flat")
    if flat is None and "fp32_groups" not in optimizer:
        return True
    for number, names in enumerate(groups):
        weights = [module[name] for name in names]
        sizes = [weight.numel() for weight in weights]
        masters = flat[number][: sum(sizes)].split(sizes) if flat is not None else optimizer["fp32_groups"][number]
        for weight, master in zip(weights, masters, strict=True):
            rounded = master.reshape(weight.shape).to(weight.dtype)
            if not torch.allclose(rounded, weight, rtol=0, atol=0, equal_nan=True):
                return False
    return True


def _numbered_shapes(optimizer: Mapping[str, Any]) -> list[list[torch.Size | int | None]]:
    """By group, of each parameter: its shape, or None where it has no state; of a flat group its elements."""
    base = optimizer.get("optimizer_state_dict", optimizer)
    if "fp32_groups_flat" in optimizer:
        return [[int(flat.numel())] for flat in optimizer["fp32_groups_flat"]]
    if "fp32_groups" in optimizer:
        return [[tensor.shape for tensor in group] for group in optimizer["fp32_groups"]]
    return [[_shape_of(base["state"].get(number)) for number in group["params"]] for group in base["param_groups"]]


def _shape_of(state: Mapping[str, Any] | None) -> torch.Size | None:
    tensors = [value for value in (state or {}).values() if torch.is_tensor(value) and value.dim()]
    return tensors[0].shape if tensors else None


def _orders(names: list[str], module: Mapping[str, torch.Tensor]) -> Iterator[list[list[str]]]:
    adapters = [name for name in names if "lora_" in name or "modules_to_save" in name]
    for trained in (names, adapters):
        if not trained:
            continue
        yield [trained]
        kept = [name for name in trained if not _NO_DECAY.search(name.lower())]
        yield [kept, [name for name in trained if name not in kept]]
        matrices = [name for name in trained if module[name].dim() > 1]
        yield [matrices, [name for name in trained if name not in matrices]]
        yield [[name for name in trained if name not in matrices], matrices]


def _fits(
    groups: list[list[str]], wanted: list[list[torch.Size | int | None]], module: Mapping[str, torch.Tensor]
) -> bool:
    if len(groups) != len(wanted):
        return False
    for names, shapes in zip(groups, wanted, strict=True):
        if len(shapes) == 1 and isinstance(shapes[0], int):
            if sum(math.prod(module[name].shape) for name in names) != shapes[0]:
                return False
        elif len(names) != len(shapes) or any(
            shape is not None and shape != module[name].shape for name, shape in zip(names, shapes, strict=True)
        ):
            return False
    return True
