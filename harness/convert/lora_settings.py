# SPDX-License-Identifier: Apache-2.0
"""`model.lora` out of the keys of axolotl, LLaMA-Factory, ms-swift and TRL; `unsupported_methods` refuses the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.convert.trainer_file import TrainerFile

_FIELDS = {
    "lora_r": "r",
    "lora_rank": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_modules_to_save": "modules_to_save",
    "additional_target": "modules_to_save",
    "modules_to_save": "modules_to_save",
    "peft_use_rslora": "use_rslora",
    "use_rslora": "use_rslora",
    "lora_bias": "bias",
    "lora_rank_pattern": "rank_pattern",
    "lora_alpha_pattern": "alpha_pattern",
    "lora_exclude_modules": "exclude_modules",
    "peft_layers_to_transform": "layers_to_transform",
}
_LISTS = ("modules_to_save", "exclude_modules")
LORA_KEYS = frozenset((*_FIELDS, "lora_target_linear", "lora_target_modules", "lora_target", "target_modules"))


def trains_lora(values: Mapping[str, Any]) -> bool:
    """Does the file ask for LoRA? A file for LLaMA-Factory or ms-swift without a method does."""
    if "lora" in (
        values.get("adapter"),
        values.get("finetuning_type"),
        values.get("tuner_type"),
        values.get("train_type"),
    ):
        return True
    has_method = any(values.get(key) for key in ("finetuning_type", "tuner_type", "train_type"))
    return not has_method and (values.get("stage") in ("sft", "pt") or _is_swift(values))


def _is_swift(values: Mapping[str, Any]) -> bool:
    return isinstance(values.get("model"), str)


def convert_lora(file: TrainerFile, target_key: str) -> None:
    """The adapters, where the file trains some. `target_key` names the modules; without adapters no key of LoRA is
    read.
    """
    if not trains_lora(file.values):
        for name in LORA_KEYS & file.values.keys():
            if file.values[name] not in (None, "", []):
                file.add_harmless(name, "is read with LoRA alone, which this file does not train")
        return
    for name, field in _FIELDS.items():
        value = file.take_value(name)
        if value not in (None, "", []):
            file.put(f"model.lora.{field}", _split_names(value) if field in _LISTS else value)
    target = file.take_value(target_key)
    if target not in (None, "", []):
        names = _split_names(target)
        is_all = names in (["all"], ["all-linear"], ["all_linear"])
        file.put("model.lora.target_modules", "all-linear" if is_all else names)
    if file.take_value("lora_target_linear") is True:
        file.put("model.lora.target_modules", "all-linear")
        if isinstance(target, list) and target:
            file.add_harmless(target_key, "is part of `all-linear`")
    file.take_value(*sorted(LORA_KEYS & file.values.keys()))
    if file.draft.get("model.lora") is None:
        file.put("model.lora.r", 8)


def _split_names(value: Any) -> Any:
    if isinstance(value, str) and not set(value) & set("()[]\\^$*+?|"):
        return [part.strip() for part in value.split(",")]
    return value
