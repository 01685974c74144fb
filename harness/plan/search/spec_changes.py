# SPDX-License-Identifier: Apache-2.0
"""An alternative of the planner as changes to the keys of a spec: all of its keys, or as few as possible. No files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.zero_partitions import partition_model
from harness.plan.search.alternatives import title_of
from harness.plan.settings.checkpointed_layers import checkpointing_value, describe_checkpointing
from harness.plan.settings.plan_settings import PlanSettings
from harness.spec.parse.source import KeyPath, value_at

_NVME_PATH = "/local_nvme"
SpecChanges = Mapping[KeyPath, Any]
"""Path of a key -> its value; None removes the key."""
_NVME_ONLY_KEYS = (
    "nvme_path",
    "pipeline_read",
    "pipeline_write",
    "buffer_count",
    "fast_init",
    "buffer_size",
    "max_in_cpu",
)


def merge_changes(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with changes on top, section by section; None removes a key."""
    result = dict(raw)
    for key, value in changes.items():
        if isinstance(value, Mapping):
            inner = result.get(key)
            result[key] = merge_changes(inner if isinstance(inner, Mapping) else {}, value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return {key: value for key, value in result.items() if value != {}}


def spec_changes_for(choice: PlanSettings, model: ModelFacts, raw: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of a spec that make a run of this choice."""
    rows = choice.rows * choice.accumulation * choice.data_parallel_size
    return {
        "train": {
            "per_device_train_batch_size": choice.rows,
            "global_batch_size": rows,
            "gradient_accumulation_steps": None,
            "gradient_checkpointing": checkpointing_value(choice),
        },
        "zero": _zero_changes(choice, model, raw),
        "parallel": {
            "tensor_parallel_size": choice.tensor_parallel_size if choice.tensor_parallel_size > 1 else None,
            "pipeline_parallel_size": choice.pipeline_parallel_size if choice.pipeline_parallel_size > 1 else None,
            "sequence_parallel_size": choice.sequence_parallel_size if choice.sequence_parallel_size > 1 else None,
        },
    }


def _zero_changes(settings: PlanSettings, model: ModelFacts, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Stage and offload. Sizes of buffers on NVMe are left to the tuned defaults where there are any for this run."""
    raw_zero = raw.get("zero") or {}
    path = next(
        (
            section["nvme_path"]
            for section in raw_zero.values()
            if isinstance(section, Mapping) and section.get("nvme_path")
        ),
        _NVME_PATH,
    )
    has_defaults = raw.get("tuned_defaults", True) and settings.tensor_parallel_size == 1 and not model.built
    zero: dict[str, Any] = {"stage": settings.stage}
    is_divided = settings.zero_world_size > 1 == settings.pipeline_parallel_size and settings.optimizer_device == "none"
    if settings.stage in (1, 2) and is_divided and raw_zero.get("overlap_comm") is None:  # stage 3 does by default
        zero["overlap_comm"] = True
    for section, device in (("offload_optimizer", settings.optimizer_device), ("offload_param", settings.param_device)):
        written = value_at(raw_zero, (section, "device"))
        zero[section] = None if device == "none" else {"device": device}
        if device == "nvme":
            zero[section] |= {"nvme_path": path}
        elif device != "none" and written == "nvme":
            zero[section] |= dict.fromkeys(_NVME_ONLY_KEYS)
        if device == "nvme" and written != "nvme" and not has_defaults:
            zero[section] |= _nvme_sizes(section, settings, model)
            zero["sub_group_size"] = settings.sub_group_size
    return zero


def _nvme_sizes(section: str, settings: PlanSettings, model: ModelFacts) -> dict[str, Any]:
    """Keys of a section on NVMe that DeepSpeed's defaults are too slow or too small for."""
    if section == "offload_optimizer":
        return {
            "pipeline_read": settings.pipeline_read,
            "pipeline_write": settings.pipeline_write,
            "buffer_count": settings.optimizer_buffers,
        }
    largest = -(-partition_model(model, settings).largest_parameter // settings.zero_world_size)
    size = max(settings.parameter_buffer_size, -(-largest // 1_000_000) * 1_000_000)
    return {"buffer_count": settings.parameter_buffers, "buffer_size": size}


def minimal_changes(
    choice: PlanSettings, run: PlanSettings, model: ModelFacts, raw: Mapping[str, Any]
) -> dict[KeyPath, Any]:
    """The fewest changes of `raw`, the values of a spec whose settings are `run`, that make it `choice`.

    Ranks and parallel sizes of the two are the same, and the global batch: a micro-batch changes the accumulation.
    Empty where they differ in nothing that a spec has a key for.
    """
    zero = spec_changes_for(choice, model, raw)["zero"]
    changes: dict[KeyPath, Any] = {}
    if choice.stage != run.stage:
        changes["zero", "stage"] = choice.stage
    for name, device, current_device in (
        ("offload_optimizer", choice.optimizer_device, run.optimizer_device),
        ("offload_param", choice.param_device, run.param_device),
    ):
        if device != current_device:
            changes |= _offload_changes(("zero", name), zero[name], value_at(raw, ("zero", name)))
    for key in ("overlap_comm", "sub_group_size"):
        if key in zero:
            changes["zero", key] = zero[key]
    if checkpointing_value(choice) != checkpointing_value(run):
        changes["train", "gradient_checkpointing"] = checkpointing_value(choice)
    if choice.micro_batch != run.micro_batch:
        changes |= _batch_changes(choice, value_at(raw, ("train",)))
    return changes


def _offload_changes(path: KeyPath, section: Any, current: Any) -> dict[KeyPath, Any]:
    """Key by key where the section exists already, so that its other keys and its comments stay."""
    if not section or not isinstance(current, Mapping):
        return {path: section}
    changes: dict[KeyPath, Any] = {(*path, key): value for key, value in section.items() if current.get(key) != value}
    obsolete = () if section["device"] == "nvme" else _NVME_ONLY_KEYS
    return changes | {(*path, key): None for key in obsolete if key in current}


def _batch_changes(choice: PlanSettings, train: Any) -> dict[KeyPath, Any]:
    """The micro-batch, and the accumulation where the global batch would change without it."""
    train = train if isinstance(train, Mapping) else {}
    changes: dict[KeyPath, Any] = {("train", "per_device_train_batch_size"): choice.rows}
    if train.get("gradient_accumulation_steps") is not None or train.get("global_batch_size") is None:
        changes["train", "gradient_accumulation_steps"] = choice.accumulation
    return changes


def describe_changes(choice: PlanSettings, run: PlanSettings) -> str:
    """The differences from the run: `ZeRO-2, micro-batch 8 x 2, no gradient checkpointing`."""
    parts = []
    places = (choice.stage, choice.optimizer_device, choice.param_device)
    if places != (run.stage, run.optimizer_device, run.param_device):
        parts.append(title_of(choice))
    if choice.micro_batch != run.micro_batch:
        parts.append(f"micro-batch {choice.rows} x {choice.accumulation}")
    if checkpointing_value(choice) != checkpointing_value(run):
        parts.append(describe_checkpointing(choice))
    return ", ".join(parts)
