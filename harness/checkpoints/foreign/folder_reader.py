# SPDX-License-Identifier: Apache-2.0
"""Reads a folder with a checkpoint of any program: who wrote it, what it holds, whether it is whole.

By names, sizes, JSON files and outlines; nothing of the folder is run.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path

from harness.checkpoints.foreign.deepspeed_folder import inspect_tag
from harness.checkpoints.foreign.folder_files import list_names, parse_shard, size_of
from harness.checkpoints.foreign.inspection import OWN, Inspection
from harness.checkpoints.foreign.torch_outline import CUT_OFF, OutlineError, read_outline, tensors_in
from harness.errors import ExitCode, user_error
from harness.file_io import open_regular, read_regular
from harness.units import format_bytes

_WEIGHTS = re.compile(r"(?:pytorch_model|model|adapter_model)\S*\.(?:safetensors|bin)")
_MAX_FILES = 100_000
_MAX_INNER = 1000
_MARKS = {"trainer_state.json", "latest", "adapter_config.json", "model.safetensors", "random_states_0.pkl"}
"""Files that a checkpoint has, and no other folder."""
_MAX_HEADER = 1 << 27
"""Bytes of the JSON before the tensors of a safetensors file."""


def inspect_folder(folder: Path) -> Inspection:
    """Tell what a folder is, by names, sizes, JSON and outlines; nothing of it is run. Raises UserError where it is no
    folder.
    """
    if not folder.is_dir():
        message = f"`{folder}` is " + ("a file" if folder.exists() else "not there")
        raise user_error("CK113", message, fix="name the folder that holds the checkpoint's files", code=ExitCode.USAGE)
    found = Inspection(folder)
    names = list_names(folder)
    if len(names) > _MAX_FILES:
        found.unknown.append(f"only the first {_MAX_FILES:,} of {len(names):,} names were looked at")
        names = names[:_MAX_FILES]
    for reader in (_read_own, _read_trainer, _read_accelerate, _read_deepspeed, _read_megatron, _read_verl):
        reader(found, names)
    _read_sharded(found, names)
    _read_weights(found, names)
    if not found.is_checkpoint:
        _list_inner(found, names)
    return found


def _list_inner(found: Inspection, names: list[str]) -> None:
    """The checkpoints of a folder that has them below it, such as the Trainer's `output_dir`."""
    inner = [
        name for name in names[:_MAX_INNER] if (found.folder / name).is_dir() and _is_checkpoint(found.folder / name)
    ]
    if inner:
        found.kind = "a folder with checkpoints"
        found.add("checkpoints", ", ".join(inner[-10:]))
        found.unknown.append("each has an answer of its own; name one of them")


def _is_checkpoint(folder: Path) -> bool:
    names = set(list_names(folder)[:_MAX_INNER])
    return bool(names & _MARKS) or _is_tag(folder) or any(_is_tag(folder / name) for name in names)


def _read_own(found: Inspection, names: list[str]) -> None:
    body = found.read_json("manifest.json") if "manifest.json" in names else None
    if body is None or not {"format_version", "files"} <= body.keys():
        return
    found.kind = OWN
    found.unknown.append("its files were not compared with its manifest")
    folder = shlex.quote(str(found.folder))
    found.uses.append((f"harness checkpoint verify {folder}", "reads every byte and compares it with its manifest"))
    found.uses.append((f"harness launch SPEC --resume {folder}", "resumes, on other ranks as well"))


def _read_trainer(found: Inspection, names: list[str]) -> None:
    if "trainer_state.json" not in names:
        return
    state = found.read_json("trainer_state.json") or {}
    found.kind = "a checkpoint of the transformers Trainer (or of TRL, axolotl, LLaMA-Factory, ms-swift, which use it)"
    found.add("step", f"{state.get('global_step')} of {state.get('max_steps')}")
    found.add("epoch", state.get("epoch"))
    latest, step = _text_of(found.folder / "latest"), state.get("global_step")
    if latest is not None and latest != f"global_step{step}":
        found.problems.append(f"`latest` names `{latest[:80]}`, and trainer_state.json is of step {step}")
    filled = [name for name in names if (found.folder / name).is_dir() or size_of(found.folder / name)]
    tags = [name for name in filled if _is_tag(found.folder / name)]
    shards = [name for name in filled if _has_shards(found.folder / name)]
    lacks = [
        text
        for text, files in (
            ("random states", [n for n in filled if re.fullmatch(r"rng_state(_\d+)?\.pth", n)]),
            ("schedule", tags or "scheduler.pt" in filled),
            ("weights", shards or [n for n in filled if _WEIGHTS.fullmatch(n)]),
            ("optimizer", shards or {"optimizer.pt", "optimizer.bin"} & {*filled}),
        )
        if not files
    ]
    if lacks:
        found.problems.append(f"the Trainer cannot resume exactly: no {', no '.join(lacks)}")


def _read_accelerate(found: Inspection, names: list[str]) -> None:
    states = [name for name in names if re.fullmatch(r"random_states_\d+\.pkl", name)]
    if states:
        found.kind = "a checkpoint of accelerate (`save_state`)"
        found.add("processes", len(states))
        if not any(
            _has_shards(found.folder / name) or name.endswith((".safetensors", ".bin", ".distcp")) for name in names
        ):
            found.problems.append("it has no weights")


def _read_deepspeed(found: Inspection, names: list[str]) -> None:
    folder = found.folder
    tags = [name for name in names if _is_tag(folder / name)]
    if _is_tag(folder):  # the folder of the step itself
        inspect_tag(found, folder)
        return
    pointer = next((name for name in ("latest", "latest_universal") if name in names), "latest")
    latest = _text_of(folder / pointer) if pointer in names else None
    if latest is not None and latest not in tags:
        found.problems.append(f"`{pointer}` names `{latest[:80]}`, which is not there")
    if not tags:
        if latest is not None and not found.is_checkpoint:
            found.kind = "the remains of a DeepSpeed checkpoint"
        return
    tag = latest if latest in tags else tags[-1]
    if len(tags) > 1:
        found.add("saves", ", ".join(tags[:10]) + (f" and {len(tags) - 10} more" if len(tags) > 10 else ""))
    if latest is None and found.kind != OWN:
        found.problems.append(f"no file `latest`: a program that is not told the tag `{tag}` finds no checkpoint")
    inspect_tag(found, folder / tag)


def _is_tag(folder: Path) -> bool:
    """Is it the folder of one save of DeepSpeed?"""
    return folder.is_dir() and ((folder / "zero").is_dir() or any(parse_shard(name) for name in list_names(folder)))


def _has_shards(folder: Path) -> bool:
    """Is it the folder of a save of DeepSpeed, or of torch's sharded ones?"""
    return _is_tag(folder) or any(name.endswith(".distcp") for name in list_names(folder))


def _read_megatron(found: Inspection, names: list[str]) -> None:
    latest = "latest_checkpointed_iteration.txt"
    ranks = [name for name in names if re.fullmatch(r"mp_rank_\d+(_\d+)*", name)]
    if found.is_checkpoint:  # Megatron-DeepSpeed writes the file of its parent, too
        return
    if latest in names:
        step = (_text_of(found.folder / latest) or "")[:20]
        found.kind = "checkpoints of Megatron-LM"
        found.unknown.append("the files of Megatron-LM are not looked at")
        found.add("step", step)
        if not any((found.folder / name).is_dir() for name in (f"iter_{step.zfill(7)}", step)):
            found.problems.append(f"`{latest}` names step {step[:20]}, which is not there")
    elif ranks:
        found.kind = "one save of Megatron-LM"
        found.unknown.append("the files of Megatron-LM are not looked at")
        found.add("model-parallel ranks", len(ranks))


def _read_verl(found: Inspection, names: list[str]) -> None:
    shards = [m for name in names if (m := re.fullmatch(r"model_world_size_(\d{1,6})_rank_(\d{1,6})\.pt", name))]
    if not shards or found.is_checkpoint:
        return
    found.kind = "a sharded checkpoint of verl (FSDP)"
    found.unknown.append("what its shards hold: they are not looked at")
    found.add("ranks", shards[0][1])
    if missing := sorted({*range(int(shards[0][1]))} - {int(m[2]) for m in shards}):
        found.problems.append(f"missing shards of the model: of ranks {', '.join(map(str, missing[:4]))}")


def _read_sharded(found: Inspection, names: list[str]) -> None:
    for name in ("", *names):
        folder = found.folder / name
        if not folder.is_dir():
            continue
        shards = [each for each in list_names(folder) if each.endswith(".distcp")]
        if not shards:
            continue
        if not found.is_checkpoint:
            found.kind = "a sharded checkpoint of torch (DCP), as FSDP writes it"
        found.add(f"shards in `{name or '.'}`", len(shards))
        found.unknown.append("which shards belong to it: `.metadata` says it, and is not read")
        found.problems += [f"`{each}` is empty" for each in shards if not size_of(folder / each)][:4]
        if not (folder / ".metadata").is_file():
            found.problems.append(f"`{name or '.'}` has no `.metadata`: its shards cannot be read")


def _read_adapter(found: Inspection, names: list[str]) -> bool:
    """Note an adapter of peft. Are its weights here?"""
    adapters = [name for name in names if name in ("adapter_model.safetensors", "adapter_model.bin")]
    if "adapter_config.json" in names:
        body = found.read_json("adapter_config.json") or {}
        if not found.is_checkpoint:
            found.kind = "an adapter of peft"
        found.add(
            "adapter", f"{body.get('peft_type')}, rank {body.get('r')}, of `{body.get('base_model_name_or_path')}`"
        )
        if not adapters:
            found.problems.append("`adapter_config.json` without the adapter's weights")
    return bool(adapters)


def _read_weights(found: Inspection, names: list[str]) -> None:
    is_adapter = _read_adapter(found, names)
    indexed = [name for name in names if name.endswith((".safetensors.index.json", ".bin.index.json"))]
    maps = [(found.read_json(name) or {}).get("weight_map") for name in indexed]
    listed = {str(file) for each in maps if isinstance(each, dict) for file in each.values()}
    missing = sorted(listed - set(names))
    if missing:
        which = ", ".join(missing[:3])
        found.problems.append(f"{len(missing)} of {len(listed)} files of the weights are missing: {which}")
    files = [name for name in names if _WEIGHTS.fullmatch(name)]
    if not files:
        return
    counted = [_count_safetensors(found, name) for name in files if name.endswith(".safetensors")]
    if not found.is_checkpoint:
        found.kind = "an adapter of peft" if is_adapter else "weights of a Hugging Face model"
    found.add("weights", f"{len(files)} files, {format_bytes(sum(size_of(found.folder / name) for name in files))}")
    tensors = sum(number for number, _ in counted)
    if tensors:
        found.add("tensors", f"{tensors}, {sum(elements for _, elements in counted):,} elements")
    _find_short_weights(found, files, is_indexed=bool(indexed))
    config = found.read_json("config.json") if "config.json" in names else None
    if config is not None:
        found.add("model", config.get("model_type"))
        found.add("transformers", config.get("transformers_version"))


def _find_short_weights(found: Inspection, files: list[str], *, is_indexed: bool) -> None:
    totals = {int(m[1]) for n in files if (m := re.search(r"-of-(\d{1,6})\.", n))}
    if totals and not is_indexed and len(files) < max(totals):
        found.problems.append(f"{len(files)} of {max(totals)} files of the weights are here, by their names")
    for name in files:
        if not size_of(found.folder / name):
            found.problems.append(f"`{name}` is empty")
        elif name.endswith(".bin"):
            _find_empty_weights(found, name)


def _find_empty_weights(found: Inspection, name: str) -> None:
    """An adapter that was saved without its weights has a file of a few hundred bytes."""
    try:
        has_tensors = any(tensors_in(read_outline(found.folder / name)))
    except (OutlineError, OSError) as error:
        if str(error) == CUT_OFF:
            found.problems.append(f"`{name}` is cut off")
        else:
            found.unknown.append(f"whether `{name}` is whole")
        return
    if not has_tensors:
        found.problems.append(f"`{name}` holds no tensor")


def _count_safetensors(found: Inspection, name: str) -> tuple[int, int]:
    """Tensors and elements of a file, by its header; a problem where the file is shorter than that says."""
    file = found.folder / name
    try:
        with open_regular(file) as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if 0 < length <= _MAX_HEADER else None
        if not isinstance(header, dict):
            raise ValueError
        tensors = [value for key, value in header.items() if key != "__metadata__"]
        end = max((int(value["data_offsets"][1]) for value in tensors), default=0)
        if size_of(file) < 8 + length + end:
            found.problems.append(f"`{name}` is cut off: {size_of(file):,} of {8 + length + end:,} bytes")
        return len(tensors), sum(math.prod(map(int, value["shape"])) for value in tensors)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        found.problems.append(f"`{name}` cannot be read as a safetensors file")
        return 0, 0


def _text_of(file: Path) -> str | None:
    try:
        return read_regular(file, 4096).decode(errors="replace").strip()
    except (OSError, ValueError):
        return None
