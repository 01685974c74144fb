"""Is a file that nobody named a run spec, a DeepSpeed JSON or an accelerate YAML? For folders full of other things.

Whether it is a good one is not asked: a file that is recognised and broken is checked, and said to be broken.
"""

from __future__ import annotations

from typing import Any

from harness.errors import UserError
from harness.spec.parse.source import parse
from harness.spec.run_spec import RunSpec, Section

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
"""One of these stands in everything that is meant; most other files end here."""
_DISTINCTIVE_WORDS = (
    "zero_optimization",
    "train_micro_batch_size_per_gpu",
    '"train_batch_size"',
    "per_device_train_batch_size",
    "deepspeed_config",
)
"""These tell a file that cannot be parsed."""
_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu")
_BLOCKS = ("zero_optimization", "fp16", "bf16")


def looks_like_config(text: str, file: str) -> bool:
    """Does the text look like one of the kinds that `validate-config` reads?"""
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

    telling = any(name in data for name in _BATCH_KEYS) or any(isinstance(data.get(name), dict) for name in _BLOCKS)
    return telling and 2 * sum(key in (block_keys("") or {}) for key in data) >= len(data)


def _is_spec(data: dict[str, Any]) -> bool:
    """Mostly sections of a run spec, and keys in them that belong there."""
    if 2 * sum(key in RunSpec.model_fields for key in data) < len(data):
        return False
    fitting = [name for name, value in data.items() if isinstance(value, dict) and _is_section(name, value)]
    return len(fitting) >= 2 or "zero" in fitting


def _is_section(name: str, value: dict[str, Any]) -> bool:
    field = RunSpec.model_fields.get(name)
    kind = field.annotation if field is not None else None
    return isinstance(kind, type) and issubclass(kind, Section) and bool(set(value) & set(kind.model_fields))
