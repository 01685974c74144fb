# SPDX-License-Identifier: Apache-2.0
"""The kind of configuration in a file: a run spec, a DeepSpeed JSON, or that of another program.

`detect_format` takes a file that the user named, `looks_like_config` one of a folder full of other things. Both decide
by keys alone and check none of them: a broken file of a known kind is checked later.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from harness.errors import UserError
from harness.findings import Place
from harness.spec.parse.source import Source, input_error
from harness.spec.parse.source_parser import parse
from harness.spec.run_spec import RunSpec, Section

ConfigFormat = Literal[
    "spec",
    "deepspeed-json",
    "accelerate-yaml",
    "axolotl-yaml",
    "trainer-yaml",
    "trl-yaml",
    "llama-factory-yaml",
    "llama-factory-v1",
    "swift-config",
    "arctic-yaml",
    "gpt-neox",
    "inference",
    "model-folder",
]
TRAINER_PROGRAMS: dict[str, str] = {
    "axolotl-yaml": "an axolotl",
    "trainer-yaml": "a LLaMA-Factory or Trainer",
    "trl-yaml": "a TRL",
    "llama-factory-yaml": "a LLaMA-Factory",
    "swift-config": "an ms-swift",
    "arctic-yaml": "an ArcticTraining",
}
"""Formats that `harness adopt` converts, and no other command reads."""
_LEFT_ALONE: tuple[ConfigFormat, ...] = ("gpt-neox", "inference", "llama-factory-v1", "model-folder")
_SETS = {
    name: frozenset(keys.split())
    for name, keys in re.findall(
        r"^(\w+): ((?:.+\n)(?: .+\n)*)", Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"), re.MULTILINE
    )
}
"""Keys by which a file's program is known."""
_MODEL_FILES = {
    "model_type": "config.json",
    "weight_map": "model.safetensors.index.json",
    "peft_type": "adapter_config.json",
    "tokenizer_class": "tokenizer_config.json",
    "log_history": "trainer_state.json",
}
"""A key of each JSON in a folder of a Hugging Face model, and the file's usual name."""

_CONFIG_WORDS = tuple(
    (
        "zero_optimization train_micro_batch_size_per_gpu train_batch_size gradient_accumulation_steps deepspeed zero "
        "fp16 bf16 max_steps num_train_epochs per_device_train_batch_size"
    ).split()
)
"""Every configuration has one of these words; most other files end here."""
_DISTINCTIVE_WORDS = (
    "zero_optimization",
    "train_micro_batch_size_per_gpu",
    '"train_batch_size"',
    "per_device_train_batch_size",
    "deepspeed_config",
)
"""Words of a configuration that cannot be parsed."""
_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu")
_BLOCKS = ("zero_optimization", "fp16", "bf16")


def detect_format(source: Source) -> ConfigFormat | None:
    """The format of a file; None for an unknown one."""
    data = source.data
    if name_model_file(source) is not None:
        return "model-folder"
    if _SETS["ACCELERATE"] & data.keys():
        return "accelerate-yaml"
    program = _detect_program(source)
    if program is not None:
        return program
    if source.syntax == "yaml":
        return _detect_yaml_format(data)
    if looks_like_deepspeed(data):
        return "deepspeed-json"
    return "spec" if RunSpec.model_fields.keys() & data.keys() - {"name"} else _guess_json_format(data)


def _detect_yaml_format(data: dict[str, Any]) -> ConfigFormat:
    has_path = isinstance(data.get("deepspeed"), str) and len(data) > 1  # a run spec has a map there
    may_be_axolotl = "base_model" in data or (has_path and "model_name_or_path" not in data)
    if may_be_axolotl and len(_SETS["AXOLOTL"] & data.keys()) > ("base_model" in data):
        return "axolotl-yaml"
    has_sections = any(isinstance(data.get(name), dict) for name in RunSpec.model_fields if name != "deepspeed")
    if (len((_SETS["TRAINER"] | _SETS["TRL"]) & data.keys()) < 2 and not has_path) or has_sections:
        return "spec"
    is_llama_factory = "finetuning_type" in data or "stage" in data or len(_SETS["LLAMA_FACTORY"] & data.keys()) > 1
    if is_llama_factory:
        return "llama-factory-yaml"
    is_trl = _SETS["TRL"] & data.keys() or ("dataset_name" in data and not _SETS["TRAINER_SCRIPTS"] & data.keys())
    return "trl-yaml" if is_trl and not _SETS["LLAMA_FACTORY"] & data.keys() else "trainer-yaml"


def _detect_program(source: Source) -> ConfigFormat | None:
    """Programs whose files have a mark of their own, in YAML and JSON alike."""
    data = source.data
    plain_names = {str(key).replace("-", "_") for key in data}
    model, sources = data.get("model"), data.get("data")
    if isinstance(model, dict) and isinstance(sources, dict) and "name_or_path" in model and "sources" in sources:
        return "arctic-yaml"
    if len(_SETS["NEOX"] & plain_names) > 2 and _SETS["NEOX_ALONE"] & plain_names and not isinstance(model, dict):
        return "gpt-neox"
    if isinstance(model, str) and len(_SETS["LLAMA_FACTORY_V1"] & data.keys()) > 1:
        return "llama-factory-v1"
    if isinstance(model, str) and "base_model" not in data and len(_SETS["SWIFT"] & data.keys()) > 1:
        return "swift-config"
    has_tensor_parallel_size = isinstance(data.get("tensor_parallel"), dict) and "tp_size" in data["tensor_parallel"]
    if len(_SETS["INFERENCE"] & plain_names) + has_tensor_parallel_size > 1 and not _SETS["TRAINING"] & plain_names:
        return "inference"
    return None


def name_model_file(source: Source) -> str | None:
    """The JSON of a Hugging Face model's folder that has such keys, such as `config.json`; None for any other file."""
    data = source.data
    if source.syntax == "yaml":
        return None
    if "log_history" not in data and (_SETS["TRAINING"] | RunSpec.model_fields.keys() - {"name"}) & data.keys():
        return None
    return next((name for key, name in _MODEL_FILES.items() if key in data), None)


def looks_like_deepspeed(data: dict[str, Any]) -> bool:
    """Are there more top-level keys of DeepSpeed's than of a run spec?"""
    from harness.facts.deepspeed_keys import block_keys

    deepspeed_keys = block_keys("") or {}
    num_spec_keys = sum(key in RunSpec.model_fields for key in data if key not in _SETS["SHARED_KEYS"])
    num_deepspeed_keys = sum(key in deepspeed_keys and key not in RunSpec.model_fields for key in data)
    if num_spec_keys or num_deepspeed_keys:
        return num_deepspeed_keys > num_spec_keys
    optimizer = data.get("optimizer")
    return isinstance(optimizer, dict) and "type" in optimizer and "params" in optimizer


def _guess_json_format(data: dict[str, Any]) -> ConfigFormat | None:
    """For a JSON of unknown keys alone: DeepSpeed's, if it is empty or some keys are nearly known."""
    from harness.facts.deepspeed_keys import block_keys
    from harness.spec.suggestions import nearest_name

    deepspeed_keys = block_keys("") or {}
    is_similar = not data or any(nearest_name(name, deepspeed_keys) for name in list(data)[:40])
    return "deepspeed-json" if is_similar else None


def require_supported_format(source: Source, file_format: ConfigFormat | None) -> None:
    """One finding instead of one a key, for an unsupported format. Raises UserError."""
    place = Place(source.file, 1, 1)
    if file_format is None:
        kinds = "neither a run spec nor a DeepSpeed configuration"
        raise input_error("SP016", f"this is {kinds}: none of its keys is known", place, "name another file")
    if file_format in TRAINER_PROGRAMS:
        raise _needs_conversion(f"this is {TRAINER_PROGRAMS[file_format]} configuration, not a run spec", source)
    if file_format == "gpt-neox":
        message = (
            "this is a GPT-NeoX configuration, from which GPT-NeoX itself makes DeepSpeed's JSON: it is not checked"
        )
        raise input_error("SP016", message, place, "check the JSON that GPT-NeoX writes for DeepSpeed")
    if file_format == "llama-factory-v1":
        message = "this is for LLaMA-Factory's new program (`USE_V1`), whose keys are not known: it is not checked"
        raise input_error("SP016", message, place, "name a configuration of `llamafactory-cli train` without `USE_V1`")
    if file_format == "model-folder":
        message = f"this is the `{name_model_file(source)}` of a Hugging Face model, not a configuration of a training"
        title = "name a run spec or a DeepSpeed JSON; a run spec has the model's folder in `model.name_or_path`"
        raise input_error("SP016", message, place, title)
    if file_format == "inference":
        message = "this is a configuration for inference, without keys for training: it is not checked"
        raise input_error("SP016", message, place, "name a configuration for training")
    has_no_spec_key = not RunSpec.model_fields.keys() & source.data.keys()
    if source.syntax == "yaml" and has_no_spec_key and len(source.data) > 1 and looks_like_deepspeed(source.data):
        title = "save it as JSON, which DeepSpeed reads"
        raise input_error("SP016", "this is a DeepSpeed configuration in YAML", place, title)


def _needs_conversion(message: str, source: Source) -> UserError:
    title = f"make a run spec of it: `harness adopt {source.file} > spec.yaml`"
    return input_error("SP016", message, Place(source.file, 1, 1), title)


def looks_like_config(text: str, file: str) -> bool:
    """Does the text look like a format that `validate-config` reads?"""
    if not any(word in text for word in _CONFIG_WORDS):
        return False
    try:
        source = parse(text, file)
    except UserError:
        return any(word in text for word in _DISTINCTIVE_WORDS)
    if is_left_alone(source):
        return False
    data = source.data
    return _is_accelerate(data) or _is_deepspeed(data) or _is_spec(data)


def is_left_alone(source: Source) -> bool:
    """Is it a file of another program that neither the linter nor `harness adopt` reads?"""
    return name_model_file(source) is not None or _detect_program(source) in _LEFT_ALONE


def _is_accelerate(data: dict[str, Any]) -> bool:
    names = {"distributed_type", "compute_environment"}
    return isinstance(data.get("deepspeed_config"), dict) and bool(names & set(data))


def _is_deepspeed(data: dict[str, Any]) -> bool:
    """Numbers or blocks that only DeepSpeed's JSON has, and mostly keys of its own."""
    from harness.facts.deepspeed_keys import block_keys

    is_distinctive = any(name in data for name in _BATCH_KEYS) or any(
        isinstance(data.get(name), dict) for name in _BLOCKS
    )
    return is_distinctive and 2 * sum(key in (block_keys("") or {}) for key in data) >= len(data)


def _is_spec(data: dict[str, Any]) -> bool:
    """Mostly sections of a run spec, and keys in them that belong there."""
    if 2 * sum(key in RunSpec.model_fields for key in data) < len(data):
        return False
    matching = [name for name, value in data.items() if isinstance(value, dict) and _is_section(name, value)]
    return len(matching) >= 2 or "zero" in matching


def _is_section(name: str, value: dict[str, Any]) -> bool:
    field = RunSpec.model_fields.get(name)
    kind = field.annotation if field is not None else None
    return isinstance(kind, type) and issubclass(kind, Section) and bool(set(value) & set(kind.model_fields))
