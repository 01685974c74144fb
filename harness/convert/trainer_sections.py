# SPDX-License-Identifier: Apache-2.0
"""The data sets and adapters of axolotl's and LLaMA-Factory's YAML as fields of a run spec, for `trainer_config`.

Keys without a place in a run spec are left to the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_RECORD_FORMATS = {"completion": "text", "alpaca": "alpaca", "chat_template": "messages", "sharegpt": "sharegpt"}
"""axolotl's `type` of a data set -> `format` of a source."""
_SUPPORTED_DATASET_KEYS = frozenset(
    ("path", "data_files", "type", "split", "name", "field", "field_messages", "ds_type", "chat_template")
)
_LORA_FIELDS = {
    "lora_r": "r",
    "lora_rank": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
    "lora_target": "target_modules",
    "lora_modules_to_save": "modules_to_save",
    "additional_target": "modules_to_save",
    "peft_use_rslora": "use_rslora",
    "use_rslora": "use_rslora",
}
LORA_KEYS = frozenset((*_LORA_FIELDS, "lora_target_linear"))


def data_fields(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """axolotl's `datasets`, where a run spec supports all of them; else nothing, so that none is lost."""
    entries = data.get("datasets")
    if not isinstance(entries, list) or not entries or not all(map(_is_supported_dataset, entries)):
        return
    yield "data.train", [part for entry in entries for part in _dataset_sources(entry)]
    text_columns = {str(e["field"]) for e in entries if e.get("field")}
    if text_columns:
        yield "data.text_column", text_columns.pop()
    message_columns = {str(e["field_messages"]) for e in entries if e.get("field_messages")}
    if message_columns:
        yield "data.messages_column", message_columns.pop()
    if data.get("sample_packing") is True and any(e["type"] != "completion" for e in entries):
        yield "data.packing", True
    if data.get("train_on_inputs") is True:
        yield "data.assistant_only_loss", False
        yield "data.completion_only_loss", False


def _is_supported_dataset(entry: Any) -> bool:
    """Is it of a known kind, without a setting that would change its records?"""
    return (
        isinstance(entry, dict)
        and entry.get("type") in _RECORD_FORMATS
        and bool(entry.get("path"))
        and set(entry) <= _SUPPORTED_DATASET_KEYS
    )


def _dataset_sources(entry: dict[str, Any]) -> Iterator[str | dict[str, Any]]:
    """A plain text stays a path alone, as a person would write it."""
    files = entry.get("data_files") or entry["path"]
    for path in files if isinstance(files, list) else [files]:
        source: dict[str, Any] = {"path": str(path), "format": _RECORD_FORMATS[entry["type"]]}
        source |= {key: str(entry[key]) for key in ("split", "name") if entry.get(key)}
        yield str(path) if source == {"path": str(path), "format": "text"} else source


def lora_fields(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """`model.lora`, where the file asks for plain LoRA."""
    if not is_lora(data):
        return
    rank = data.get("lora_r") or data.get("lora_rank") or 8  # LLaMA-Factory's default, and peft's
    yield "model.lora.r", rank
    if data.get("adapter") != "lora":  # LLaMA-Factory's other defaults
        yield "model.lora.target_modules", "all-linear"
        if isinstance(rank, int):
            yield "model.lora.lora_alpha", 2 * rank
    for name, field in _LORA_FIELDS.items():
        value = data.get(name)
        if value in (None, "", []):
            continue
        if name in ("lora_target", "additional_target") and isinstance(value, str):
            value = "all-linear" if value == "all" else [part.strip() for part in value.split(",")]
        yield f"model.lora.{field}", value
    if data.get("lora_target_linear") is True:
        yield "model.lora.target_modules", "all-linear"


def is_lora(data: dict[str, Any]) -> bool:
    """Does the file ask for LoRA? `unsupported_methods` has refused all but plain LoRA before."""
    return "lora" in (data.get("adapter"), data.get("finetuning_type")) or is_lora_by_default(data)


def is_lora_by_default(data: dict[str, Any]) -> bool:
    """Is it a file for LLaMA-Factory without a method, which means LoRA?"""
    return data.get("finetuning_type") is None and data.get("stage") in ("sft", "pt")
