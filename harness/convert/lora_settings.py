# SPDX-License-Identifier: Apache-2.0
"""`model.lora` and `model.quantization` out of the keys of axolotl, LLaMA-Factory, ms-swift and TRL;
`unsupported_methods` refuses the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.convert.trainer_file import TrainerFile, is_on

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
_ALL = ("all", "all-linear", "all_linear")
_LISTS = ("modules_to_save", "exclude_modules")
LORA_KEYS = frozenset((*_FIELDS, "lora_target_linear", "lora_target_modules", "lora_target", "target_modules"))


QLORA_KEYS = frozenset("""adapter load_in_4bit quantization_bit quantization_method quant_bits quant_method""".split())
"""Keys that ask for 4-bit weights of bitsandbytes under LoRA, or for another method, by their values."""
_DOUBLE_QUANT = ("double_quantization", "use_bnb_nested_quant", "bnb_4bit_use_double_quant")
_QUANT_TYPE = ("quantization_type", "bnb_4bit_quant_type")
QUANTIZATION_KEYS = frozenset((*_DOUBLE_QUANT, *_QUANT_TYPE, "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"))


def trains_qlora(values: Mapping[str, Any]) -> bool:
    """Does the file ask for 4-bit weights of bitsandbytes under LoRA?"""
    method = str(values.get("quantization_method", values.get("quant_method")) or "bnb").lower()
    if not trains_lora(values) or method not in ("bnb", "bitsandbytes", "quantizationmethod.bnb"):
        return False
    is_qlora = values.get("adapter") == "qlora" and values.get("load_in_4bit") in (True, None)
    bits = (values.get("quantization_bit"), values.get("quant_bits"))
    return is_qlora or values.get("load_in_4bit") is True or any(value in (4, "4") for value in bits)


def _convert_quantization(file: TrainerFile, *, nested: bool) -> None:
    """4-bit weights with their type of values and of scales. `nested`: the program quantizes the scales, too, where its
    file does not say so.
    """
    double, kind = file.take_value(*_DOUBLE_QUANT), file.take_value(*_QUANT_TYPE)
    file.take_value(*(QUANTIZATION_KEYS & file.values.keys()))
    if not trains_qlora(file.values):
        return
    file.take_value(*(QLORA_KEYS & file.values.keys()))
    file.put("model.quantization.load_in_4bit", True)
    if kind == "fp4":
        file.put("model.quantization.bnb_4bit_quant_type", kind)
    if not (nested if double is None else is_on(double)):
        file.put("model.quantization.bnb_4bit_use_double_quant", False)


def trains_lora(values: Mapping[str, Any]) -> bool:
    """Does the file ask for LoRA? A file for LLaMA-Factory or ms-swift without a method does."""
    if is_on(values.get("use_peft")) or values.get("adapter") == "qlora":
        return True
    if "lora" in (
        values.get("adapter"),
        values.get("finetuning_type"),
        values.get("tuner_type"),
        values.get("train_type"),
    ):
        return True
    has_method = any(values.get(key) for key in ("finetuning_type", "tuner_type", "train_type"))
    is_swift = isinstance(values.get("model"), str)
    return not has_method and (is_swift or values.get("stage") in ("sft", "pt", "dpo", "kto", "rm"))


def convert_lora(file: TrainerFile, target_key: str, *, rank: int = 8, nested: bool = True) -> None:
    """The adapters, where the file trains some, and the 4-bit weights under them. `target_key` names the modules,
    `rank` is the program's own; without adapters no key of LoRA is read.
    """
    file.take_value("use_peft")
    _convert_quantization(file, nested=nested)
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
        _convert_targets(file, target_key, _split_names(target))
    if file.take_value("lora_target_linear") is True:
        file.put("model.lora.target_modules", "all-linear")
        if isinstance(target, list) and target:
            file.add_harmless(target_key, "is part of `all-linear`")
    file.take_value(*sorted(LORA_KEYS & file.values.keys()))
    if file.draft.get("model.lora.r") is None:
        file.put("model.lora.r", rank)


def _convert_targets(file: TrainerFile, key: str, names: Any) -> None:
    others = [name for name in names if name not in _ALL] if isinstance(names, list) else []
    is_all = isinstance(names, list) and len(others) < len(names)
    file.put("model.lora.target_modules", "all-linear" if is_all else names)
    if is_all and others:
        text = f"adapters of {', '.join(f'`{name}`' for name in others)} too, which a run spec has in a list"
        file.add_lossy(key, f"{text} of all modules' names alone, without `all-linear`")


def _split_names(value: Any) -> Any:
    if isinstance(value, str) and not set(value) & set("()[]\\^$*+?|"):
        return [part.strip() for part in value.split(",")]
    return value
