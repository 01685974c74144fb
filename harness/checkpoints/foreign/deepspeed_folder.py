# SPDX-License-Identifier: Apache-2.0
"""One save of DeepSpeed: ranks and degrees by the names of its shards, the rest by the outlines of a few of them."""

from __future__ import annotations

import math
import re
import shlex
import statistics
import struct
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from harness.checkpoints.foreign.folder_files import Shard, is_archive, leaves_folder, list_names, parse_shard, size_of
from harness.checkpoints.foreign.inspection import OWN, Inspection
from harness.checkpoints.foreign.torch_outline import OutlineError, Tensor, read_bytes, read_outline, tensors_in
from harness.units import format_bytes, pluralize

_MOST_OUTLINES = 64
"""Shards whose steps are compared; the names and the sizes of all are."""
_SHORT = 0.9
"""A shard below this share of the others' size is short: ranks differ by their padding alone."""


def inspect_tag(found: Inspection, folder: Path) -> None:
    """Add what is known of the save in `folder` to an inspection."""
    if not found.is_checkpoint:
        found.kind = "a DeepSpeed checkpoint"
    found.add("save", folder.name)
    if (folder / "zero").is_dir():
        _inspect_universal(found, folder)
        return
    shards = [shard for name in list_names(folder) if (shard := parse_shard(name))]
    found.add("size", format_bytes(sum(size_of(folder / shard.name) for shard in shards)))
    models, optimizers = ([s for s in shards if s.kind == kind] for kind in ("model", "optimizer"))
    bodies = [_outline(found, folder, shard) for shard in models[:_MOST_OUTLINES]]
    states = [_map(_outline(found, folder, each).get("optimizer_state_dict")) for each in optimizers[:_MOST_OUTLINES]]
    body, state = next(iter(bodies), {}), next(iter(states), {})
    stage = _stage_of(models, optimizers, state, body)
    ranks = _int(body.get("dp_world_size")) or max((s.data or 0 for s in (*models, *optimizers)), default=0) + 1
    tensor = _int(body.get("mp_world_size")) or len({s.tensor for s in models if s.tensor is not None}) or 1
    _add_degrees(found, shards, body, stage, ranks)
    _add_state(found, body, state)
    _find_missing(found, shards, stage, ranks, tensor)
    _find_short(found, folder, shards)
    counts = defaultdict[Any, list[Any]](list, {("steps",): [each.get("global_steps") for each in bodies]})
    for shard, each in zip(optimizers, states, strict=False):
        counts["stages",].append(_written_stage(each))
        for key, step in _steps_of(folder / shard.name, each):
            counts["steps", shard.tensor, key].append(step)
    _find_mixed(found, shards, counts)
    is_plain = tensor == 1 and all(shard.kind in ("model", "optimizer") for shard in shards)
    _add_uses(found, folder, stage, ranks, is_plain=is_plain)


_STAGES = ("disabled", "optimizer_states", "gradients", "weights")
"""DeepSpeed's `ZeroStageEnum`, in the order of its values."""


def _stage_of(
    models: list[Shard], optimizers: list[Shard], state: Mapping[str, Any], body: Mapping[str, Any]
) -> int | None:
    """The ZeRO stage; None where the shards that would say it are missing, or cannot be read. `body`: of a model's."""
    if any(shard.data is not None for shard in models):
        return 3
    asked = _map(_map(body.get("ds_config")).get("zero_optimization")).get("stage")
    if not optimizers:  # without ZeRO there are none, else all of them are gone
        return asked if asked in (1, 2) else 0 if body else None
    stage = _written_stage(state)
    if stage is None and "param_slice_mappings" in state:  # of DeepSpeed's wrapper for bf16, which does not write it
        return 1 if asked == 1 else 0
    return stage


def _written_stage(state: Mapping[str, Any]) -> int | None:
    stage = state.get("zero_stage")
    if isinstance(stage, int):
        return stage
    member = getattr(stage, "member", None)
    return _STAGES.index(member) if member in _STAGES else _int(member)


def _add_degrees(
    found: Inspection, shards: list[Shard], body: Mapping[str, Any], stage: int | None, ranks: int
) -> None:
    found.add("DeepSpeed", body.get("ds_version"))
    found.add("ZeRO stage", "not known" if stage is None else stage)
    found.add("data ranks", ranks)
    dims = _map(body.get("checkpoint_parallel_dimensions"))
    found.add("tensor degree", dims.get("tp_degree"))
    if "tp_degree" not in dims:
        found.add("model-parallel ranks", _int(body.get("mp_world_size")))
    layers = {shard.layer for shard in shards if shard.kind == "layer"}
    if layers:
        found.add(
            "pipeline", f"{pluralize(len(layers), 'layer')} in files of their own, {dims.get('pp_degree', '?')} stages"
        )
    experts = {(shard.layer, shard.expert) for shard in shards if shard.kind == "expert"}
    found.add("experts", len(experts) or None)
    counts = {layer: max(e or 0 for each, e in experts if each == layer) + 1 for layer, _ in experts}
    if len(experts) < sum(counts.values()):
        found.problems.append(f"{sum(counts.values()) - len(experts)} files of experts are missing")


def _add_state(found: Inspection, body: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    found.add("step", body.get("global_steps"))
    name = _map(_map(body.get("ds_config")).get("optimizer")).get("type")
    base = state.get("base_optimizer_state", body.get("optimizer"))
    entries = base.get("state") if isinstance(base, dict) else base
    entries = entries if isinstance(entries, dict | list) else {}
    first = _map(next(iter(entries.values() if isinstance(entries, dict) else entries), None))
    keys = sorted(key for key, value in first.items() if isinstance(value, Tensor))
    if name or keys:
        formats = " ".join(sorted({first[key].format for key in keys}))
        found.add("optimizer", f"{name or 'of the script'}, states {', '.join(keys) or 'none'} {formats}")
    weights = next((t.format for t in tensors_in(body.get("module"))), None)
    masters = next((t.format for key, value in state.items() if "fp32" in str(key) for t in tensors_in(value)), None)
    found.add(
        "formats", ", ".join(filter(None, (weights and f"weights {weights}", masters and f"masters {masters}"))) or None
    )
    shapes = _shapes_of(body)
    if shapes:
        sizes = (shape if isinstance(shape, list | tuple) else () for shape in shapes.values())
        numel = sum(math.prod(size for size in each if isinstance(size, int)) for each in sizes)
        found.add("parameters", f"{len(shapes)} trained, {numel:,} elements")
    frozen = body.get("frozen_param_shapes")
    if isinstance(frozen, dict) and frozen:
        held = body.get("frozen_param_fragments")
        found.add("frozen", f"{len(frozen)} parameters, " + ("held" if held else "not held: the base model has them"))
    shared = body.get("shared_params")
    if isinstance(shared, dict) and shared:
        found.add("tied", ", ".join(f"{name} = {of}" for name, of in list(shared.items())[:3]))
    if shapes and all("lora_" in name for name in shapes):
        found.add("adapters", "LoRA alone is trained")


def _shapes_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Shapes of the trained parameters by name; those of the module without ZeRO."""
    groups = body.get("param_shapes")
    groups = groups if isinstance(groups, list) else [groups]
    shapes = {str(name): shape for group in groups if isinstance(group, dict) for name, shape in group.items()}
    module = body.get("module")
    if not shapes and isinstance(module, dict):
        shapes = {str(name): value.shape for name, value in module.items() if isinstance(value, Tensor)}
    return shapes


def _find_missing(found: Inspection, shards: list[Shard], stage: int | None, ranks: int, tensor: int) -> None:
    """Shards that the degrees ask for and that are not there, and those of ranks that the save did not have."""
    by_kind = {kind: [s for s in shards if s.kind == kind] for kind in ("model", "optimizer", "layer")}
    expected = {
        ("model", None if stage != 3 else data, t) for t in range(tensor) for data in range(ranks if stage == 3 else 1)
    }
    if not by_kind["model"] and by_kind["layer"]:
        expected = set()
    if by_kind["optimizer"] or (stage or 0) > 0:
        expected |= {("optimizer", data, t) for t in range(tensor) for data in range(ranks)}
    here = {(s.kind, s.data, s.tensor) for s in (*by_kind["model"], *by_kind["optimizer"])}
    missing = sorted(expected - here, key=lambda shard: (shard[0], shard[1] or 0, shard[2]))
    for kind in ("model", "optimizer"):
        lacking = [(data, t) for each, data, t in missing if each == kind]
        if lacking:
            names = ", ".join(
                f"data rank {d}, tensor rank {t}" if d is not None else f"tensor rank {t}" for d, t in lacking[:4]
            )
            more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""
            found.problems.append(f"missing shards with the {kind}'s state: of {names}{more}")
    foreign = sorted({s.data or 0 for s in (*by_kind["model"], *by_kind["optimizer"])} - {*range(ranks)})
    if foreign:
        which = f"data rank{'s' * (len(foreign) > 1)} {_span(foreign)}"
        found.problems.append(f"shards of {which} are of another save: this one had {ranks} ranks")
    layers = sorted({s.layer for s in by_kind["layer"] if s.layer is not None})
    if layers and (gaps := sorted(set(range(layers[-1] + 1)) - set(layers))):
        found.unknown.append(f"layers {_span(gaps)} have no file: layers without parameters, or missing ones")


def _span(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _find_short(found: Inspection, folder: Path, shards: list[Shard]) -> None:
    """Shards that are empty, cut off, or shorter than those of the other ranks."""
    for kind, tensor in sorted({(s.kind, s.tensor) for s in shards}, key=str):
        sizes = {s.name: size_of(folder / s.name) for s in shards if (s.kind, s.tensor) == (kind, tensor)}
        has_one_size = kind in ("model", "optimizer")  # layers, experts and stages differ
        typical = statistics.median(sizes.values()) if has_one_size else 0
        for name, size in sizes.items():
            if leaves_folder(folder / name):
                found.problems.append(f"`{name}` is a link to another folder, which no import follows: copy the file")
            elif size == 0 or size < _SHORT * typical:
                others = f", the others {int(typical):,}" if typical else ""
                found.problems.append(f"`{name}` has {size:,} bytes{others}")
            elif not is_archive(folder / name):
                found.problems.append(f"`{name}` is cut off, or no file of `torch.save`")


def _find_mixed(found: Inspection, shards: list[Shard], counts: dict[Any, list[Any]]) -> None:
    """Two saves in one folder, by what shards say that must be one number, and by names."""
    for what, said in counts.items():
        known = sorted({each for each in said if isinstance(each, int)})
        text = f"its shards are of {what[0]} {', '.join(map(str, known[:4]))}: two saves mixed"
        if len(known) > 1 and text not in found.problems:
            found.problems.append(text)
    if len({shard[1:] for shard in shards}) < len(shards):
        found.problems.append("two of its files are the same shard: two saves mixed")
    most = max(sum(shard.kind == kind for shard in shards) for kind in ("model", "optimizer"))
    if most > _MOST_OUTLINES:
        found.unknown.append(f"steps of {most - _MOST_OUTLINES} shards were not compared")


def _steps_of(file: Path, state: Mapping[str, Any]) -> Iterator[tuple[Any, int]]:
    """Counts of an optimizer's shard, with their keys: numbers, or tensors of one number as torch's optimizers have."""
    base = _map(state.get("base_optimizer_state", state.get("optimizer_state_dict")))
    for key, entry in islice(_map(base.get("state")).items(), 4):
        step = _map(entry).get("step")
        if isinstance(step, Tensor):
            with suppress(OutlineError, OSError, zipfile.BadZipFile, struct.error, ValueError, OverflowError):
                yield key, int(struct.unpack("<f", read_bytes(file, step, 4, width=4))[0])
        elif isinstance(step, int):
            yield key, step


def _add_uses(found: Inspection, folder: Path, stage: int | None, ranks: int, *, is_plain: bool) -> None:
    """`is_plain`: without tensor ranks, stages and experts, which `zero_to_fp32` does not read."""
    if found.kind == OWN:
        return
    whole = shlex.quote(str(found.folder))
    if found.problems or stage is None:
        if stage in (1, 2) and is_plain:
            text = "writes the parameters that are left, by name, never as a whole"
            found.uses.append((f"harness checkpoint import {whole} OUT --partial", text))
        return
    if is_plain:
        text = "makes a run of the harness that goes on at the next step, on any ranks and at any stage"
        found.uses.append((f"harness checkpoint import {whole} RUN", text))
    parent, tag = shlex.quote(str(folder.parent)), shlex.quote(folder.name)
    text = "resumes in the program that wrote it" + (f", on {ranks} data ranks" if stage else "")
    found.uses.append((f"engine.load_checkpoint({str(folder.parent)!r}, tag={folder.name!r})", text))
    if stage and is_plain:
        script = f"python -m deepspeed.utils.zero_to_fp32 {parent} OUT --tag {tag}"
        found.uses.append((script, "writes the whole weights in fp32, for `model.name_or_path` of a new run"))
        paths = f"--input_folder {shlex.quote(str(folder))} --output_folder OUT"
        convert = f"python -m deepspeed.checkpoint.ds_to_universal {paths}"
        found.uses.append((convert, "makes it loadable on another number of ranks (`load_universal`)"))


def _inspect_universal(found: Inspection, folder: Path) -> None:
    if found.kind == "a DeepSpeed checkpoint":
        found.kind = "a universal checkpoint of DeepSpeed"
    parameters = [folder / "zero" / name for name in list_names(folder / "zero") if (folder / "zero" / name).is_dir()]
    found.add("parameters", len(parameters))
    lacking = [entry.name for entry in parameters if not size_of(entry / "fp32.pt")]
    if lacking:
        found.problems.append(f"{len(lacking)} parameters without `fp32.pt`: {', '.join(lacking[:3])}")
    held = {entry.name: frozenset(file.stem for file in entry.glob("*.pt")) for entry in parameters}
    states = set[str]().union(*held.values()) - {"fp32", "step"}
    kinds = {*held.values()}
    fewer = [name for name, each in held.items() if any(each < other for other in kinds)]
    if fewer:
        found.problems.append(f"{len(fewer)} parameters lack states that others have: {', '.join(fewer[:3])}")
    found.add("optimizer states", ", ".join(sorted(states)) or "none")
    if not any(re.fullmatch(r"mp_rank_\d+_model_states\.pt", name) for name in list_names(folder)):
        found.problems.append("no `mp_rank_*_model_states.pt`: DeepSpeed reads step and schedule from it")


def _outline(found: Inspection, folder: Path, shard: Shard) -> Mapping[str, Any]:
    """The outline of a shard, empty where there is none. Shards that are short have a problem of their own."""
    try:
        body = read_outline(folder / shard.name)
    except (OutlineError, OSError) as error:
        text = f"`{shard.name}` is {error}" if isinstance(error, OutlineError) else f"`{shard.name}` cannot be read"
        if is_archive(folder / shard.name):
            found.problems.append(text)
        return {}
    if not isinstance(body, dict):
        found.problems.append(f"`{shard.name}` holds no state of DeepSpeed")
    return _map(body)


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 24 else None
