# SPDX-License-Identifier: Apache-2.0
"""The kind of configuration in a file: a run spec, a DeepSpeed JSON, or that of another program.

`detect_format` takes a file that the user named, `looks_like_config` one of a folder full of other things. Both decide
by keys alone and check none of them: a broken file of a known kind is checked later.
"""

from __future__ import annotations

from typing import Any, Literal

from harness.errors import UserError
from harness.findings import Place
from harness.spec.parse.source import Source, input_error
from harness.spec.parse.source_parser import parse
from harness.spec.run_spec import RunSpec, Section

ConfigFormat = Literal["spec", "deepspeed-json", "accelerate-yaml", "axolotl-yaml", "trainer-yaml"]
_SHARED_KEYS = frozenset(("optimizer", "scheduler", "checkpoint"))
_ACCELERATE = frozenset(("compute_environment", "distributed_type", "deepspeed_config"))
_AXOLOTL = frozenset(("base_model", "micro_batch_size", "sequence_len", "datasets", "adapter"))
_TRAINER = frozenset(
    """model_name_or_path per_device_train_batch_size learning_rate num_train_epochs output_dir finetuning_type
    cutoff_len lr_scheduler_type bf16 dataset do_train""".split()
)


_CONFIG_WORDS = (
    "zero_optimization",
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_accumulation_steps",
    "deepspeed",
    "zero",
    "fp16",
    "bf16",
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
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
    if _ACCELERATE & data.keys():
        return "accelerate-yaml"
    if source.syntax == "yaml":
        if "base_model" in data and len(_AXOLOTL & data.keys()) > 1:
            return "axolotl-yaml"
        has_sections = any(isinstance(data.get(name), dict) for name in RunSpec.model_fields if name != "deepspeed")
        return "trainer-yaml" if len(_TRAINER & data.keys()) > 1 and not has_sections else "spec"
    if looks_like_deepspeed(data):
        return "deepspeed-json"
    return "spec" if RunSpec.model_fields.keys() & data.keys() - {"name"} else _guess_json_format(data)


def looks_like_deepspeed(data: dict[str, Any]) -> bool:
    """Are there more top-level keys of DeepSpeed's than of a run spec?"""
    from harness.facts.deepspeed_keys import block_keys

    deepspeed_keys = block_keys("") or {}
    num_spec_keys = sum(key in RunSpec.model_fields for key in data if key not in _SHARED_KEYS)
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
    if file_format in ("axolotl-yaml", "trainer-yaml"):
        program = "an axolotl" if file_format == "axolotl-yaml" else "a LLaMA-Factory or Trainer"
        raise _needs_conversion(f"this is {program} configuration, not a run spec", source)
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
        data = parse(text, file).data
    except UserError:
        return any(word in text for word in _DISTINCTIVE_WORDS)
    return _is_accelerate(data) or _is_deepspeed(data) or _is_spec(data)


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
