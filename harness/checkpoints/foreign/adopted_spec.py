# SPDX-License-Identifier: Apache-2.0
"""The run spec of a checkpoint that another program wrote: `harness adopt` makes it of what the checkpoint says."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.checkpoints.foreign.folder_files import list_names, parse_shard
from harness.checkpoints.foreign.torch_outline import Named, OutlineError, read_outline
from harness.convert.conversion import ConvertedSpec, convert_file
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.file_io import parse_json, read_regular
from harness.findings import Finding, Fix, Place

_MAX_JSON = 1 << 26
_ARGUMENTS = tuple(
    "learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm optim lr_scheduler_type"
    " lr_scheduler_kwargs warmup_steps warmup_ratio per_device_train_batch_size seed bf16 fp16 gradient_checkpointing"
    " save_steps logging_steps label_smoothing_factor neftune_noise_alpha max_length packing assistant_only_loss"
    " completion_only_loss train_sampling_strategy group_by_length".split()
)
"""Of TrainingArguments, and of TRL's SFTConfig: what makes the training. A name that a release lacks is left out."""
_BATCH_KEYS = ("train_batch_size", "gradient_accumulation_steps")
"""They follow from the global batch on other ranks."""
_TRAINER_ORDER = frozenset(("transformers", "trl", "axolotl", "llamafactory"))
"""Packages whose runs draw their rows in the Trainer's order, seen by `benchmarks/import_cells.py` on 2026-11-29.
ms-swift draws in another, and axolotl where it packs."""


@dataclass(frozen=True)
class WriterFacts:
    """Facts of a folder about its training. `position`: epoch and rows of it that were used, where that is known."""

    arguments: dict[str, Any]
    ds_config: dict[str, Any]
    ranks: int
    max_steps: int | None
    global_batch: int | None
    position: tuple[int, int] | None
    order_seed: int | None
    data_note: str


@dataclass(frozen=True)
class AdoptedSpec:
    """The YAML, and what of its settings the checkpoint states."""

    text: str
    settings: dict[str, Any]
    converted: ConvertedSpec


def read_writer_facts(folder: Path, tag: Path) -> WriterFacts:
    """Nothing of the folder is run; a file that cannot be read says nothing."""
    body = _first_shard(tag)
    config = body.get("ds_config")
    config = config if isinstance(config, dict) else {}
    ranks = body.get("dp_world_size")
    ranks = ranks if isinstance(ranks, int) and 0 < ranks < 1 << 24 else 1
    (package, arguments), state = _training_arguments(folder), _read_object(folder / "trainer_state.json")
    batch = config.get("train_batch_size")
    batch = batch if isinstance(batch, int) and not isinstance(batch, bool) and batch > 0 else None
    if batch is None and _count(arguments.get("per_device_train_batch_size")):
        batch = arguments["per_device_train_batch_size"] * ranks * (arguments.get("gradient_accumulation_steps") or 1)
    position, seed, note = _data_position(arguments, state, batch)
    if seed is not None and (package not in _TRAINER_ORDER or arguments.get("sample_packing") is True):
        seed, note = None, f"the order of the rows of `{package}` is not known: the data go on in the spec's own order"
    steps = state.get("max_steps")
    return WriterFacts(
        arguments, config, ranks, steps if _count(steps) else None, batch, position, seed, note,
    )  # fmt: skip


def _count(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 40


def _first_shard(tag: Path) -> Mapping[str, Any]:
    names = [name for name in list_names(tag) if (shard := parse_shard(name)) and shard.kind == "model"]
    try:
        body = read_outline(tag / names[0]) if names else {}
    except (OutlineError, OSError):
        return {}
    return body if isinstance(body, dict) else {}


def _training_arguments(folder: Path) -> tuple[str, dict[str, Any]]:
    """The package and the plain values of `training_args.bin`; an enumeration's member by its value."""
    try:
        made = read_outline(folder / "training_args.bin")
    except (OutlineError, OSError):
        return "", {}
    state = made.state if isinstance(made, Named) else None
    values = {str(key): _plain(value) for key, value in state.items()} if isinstance(state, dict) else {}
    package = made.name.partition(".")[0] if isinstance(made, Named) else ""
    return package, {key: value for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Named):
        value = value.member
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items() if isinstance(each, str | int | float | bool)} or None
    return value if isinstance(value, str | int | float | bool) else None


def _read_object(file: Path) -> dict[str, Any]:
    try:
        body = parse_json(read_regular(file, _MAX_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _data_position(
    arguments: Mapping[str, Any], state: Mapping[str, Any], batch: int | None
) -> tuple[tuple[int, int] | None, int | None, str]:
    """Epoch and rows of it, the seed of the order, and what to say."""
    step, epoch = state.get("global_step"), state.get("epoch")
    if type(step) is not int or not isinstance(epoch, int | float) or not (0 < epoch < 1e9 and 0 < step < 1 << 40):
        epoch = step = 0
    if not arguments or batch is None or not step:
        return None, None, "the order of the other program's data is not known: they go on in the spec's own order"
    steps_per_epoch = max(1, round(step / float(epoch or 1)))
    passed = step // steps_per_epoch
    position = (passed, (step - passed * steps_per_epoch) * batch)
    if arguments.get("train_sampling_strategy", "random") != "random" or arguments.get("group_by_length") is True:
        return position, None, "the Trainer sorted its data by length or left them as stored: set `data` so"
    seed = arguments.get("data_seed", arguments.get("seed", 42))
    if type(seed) is not int or not 0 <= seed < 1 << 62:
        return position, None, "the seed of the Trainer's order is not known: the data go on in the spec's own order"
    return position, seed, f"the data go on in the Trainer's own order (seed {seed})"


def adopt_checkpoint(folder: Path, facts: WriterFacts, out: Path, target: DeepSpeedTarget) -> AdoptedSpec:
    """Write what the checkpoint says into `out`, and convert it as `harness adopt` does. Raises UserError, OSError."""
    out.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in facts.ds_config.items() if key not in _BATCH_KEYS and value != math.inf}
    json_file = out / "ds_config.json"
    json_file.write_text(json.dumps(config, indent=2, default=str) + "\n", encoding="utf-8")
    file = json_file
    lora, base = _read_adapter(folder)
    if facts.arguments:
        file = out / "arguments.yaml"
        values = {key: facts.arguments[key] for key in _ARGUMENTS if facts.arguments.get(key) is not None}
        values |= {"model_name_or_path": str(folder.resolve()), "deepspeed": str(json_file.resolve())}
        if facts.max_steps is not None:
            values["max_steps"] = facts.max_steps
        values |= {"model_name_or_path": base} if base else {}
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
    converted = convert_file(str(file), target)
    text, settings = converted.text, json.loads(json.dumps(converted.draft.spec))
    for key in converted.placeholders:
        section, _, name = key.partition(".")
        settings.get(section, {}).pop(name, None)
    settings.pop("launch", None)
    settings.get("model", {}).pop("name_or_path", None)
    if lora and "\nmodel:\n" in text:
        text = text.replace("\nmodel:\n", f"\nmodel:\n  lora: {json.dumps(lora)}\n", 1)
        settings.setdefault("model", {})["lora"] = lora
    if facts.global_batch is not None and "\ntrain:\n" in text:
        text = text.replace("\ntrain:\n", f"\ntrain:\n  global_batch_size: {facts.global_batch}\n", 1)
    return AdoptedSpec(text, settings, converted)


_LORA_FIELDS = (
    "use_rslora", "bias", "rank_pattern", "alpha_pattern", "modules_to_save", "exclude_modules", "layers_to_transform",
)  # fmt: skip


def _read_adapter(folder: Path) -> tuple[dict[str, Any], str | None]:
    """LoRA's settings as `model.lora` has them, and the base model, from `adapter_config.json`; empty without one."""
    body = _read_object(folder / "adapter_config.json")
    if body.get("peft_type") != "LORA":
        return {}, None
    found = {key: body[key] for key in ("r", "lora_alpha", "lora_dropout") if isinstance(body.get(key), int | float)}
    modules = body.get("target_modules")
    if isinstance(modules, str) or (isinstance(modules, list) and all(isinstance(each, str) for each in modules)):
        found["target_modules"] = sorted(modules) if isinstance(modules, list) else modules
    found |= {key: body[key] for key in _LORA_FIELDS if body.get(key) not in (None, False, "none", {}, [])}
    other = next((key for key in ("use_dora", "trainable_token_indices", "megatron_config") if body.get(key)), None)
    if other is not None:
        message, fix = f"`{other}` of `adapter_config.json` has no place in `model.lora`", Fix("go on with the program")
        place = Place(str(folder / "adapter_config.json"), 1, 1)
        raise UserError([Finding("CK131", "error", message, place=place, fix=fix)])
    base = body.get("base_model_name_or_path")
    return found, base if isinstance(base, str) else None
