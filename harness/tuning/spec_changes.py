"""One of the planner's choices as changes to the keys of a spec, as few as make it. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.facts.model_lookup import ModelFacts
from harness.plan.alternatives import title_of
from harness.plan.plan_request import spec_changes_for
from harness.plan.plan_settings import PlanSettings
from harness.spec.parse.source import KeyPath

SpecChanges = Mapping[KeyPath, Any]
"""Path of a key -> its value; None takes the key away."""
_NVME_ONLY_KEYS = (
    "nvme_path",
    "pipeline_read",
    "pipeline_write",
    "buffer_count",
    "fast_init",
    "buffer_size",
    "max_in_cpu",
)


def minimal_changes(
    choice: PlanSettings, run: PlanSettings, model: ModelFacts, raw: Mapping[str, Any]
) -> dict[KeyPath, Any]:
    """What to change in `raw`, the values of a spec whose settings are `run`, so that they become `choice`.

    Ranks and degrees of the two are the same, and the global batch: a micro-batch changes the accumulation. Empty where
    they differ in nothing that a spec says.
    """
    wanted = spec_changes_for(choice, model, raw)["zero"]
    sets: dict[KeyPath, Any] = {}
    if choice.stage != run.stage:
        sets["zero", "stage"] = choice.stage
    for name, now, was in (
        ("offload_optimizer", choice.optimizer_device, run.optimizer_device),
        ("offload_param", choice.param_device, run.param_device),
    ):
        if now != was:
            sets |= _offload_changes(("zero", name), wanted[name], _value_at(raw, "zero", name))
    if "nvme" in (choice.optimizer_device, choice.param_device) and "nvme" not in (
        run.optimizer_device,
        run.param_device,
    ):
        sets["zero", "sub_group_size"] = choice.sub_group_size
    if choice.checkpointing != run.checkpointing:
        sets["train", "gradient_checkpointing"] = choice.checkpointing
    if choice.micro_batch != run.micro_batch:
        sets |= _batch_changes(choice, _value_at(raw, "train"))
    return sets


def _offload_changes(path: KeyPath, now: Any, was: Any) -> dict[KeyPath, Any]:
    """Key by key where there is such a section already, so that what else it says and its comments stay."""
    if not now or not isinstance(was, Mapping):
        return {path: now}
    sets: dict[KeyPath, Any] = {(*path, key): value for key, value in now.items() if was.get(key) != value}
    gone = () if now["device"] == "nvme" else _NVME_ONLY_KEYS
    return sets | {(*path, key): None for key in gone if key in was}


def _batch_changes(choice: PlanSettings, train: Any) -> dict[KeyPath, Any]:
    """The micro-batch, and the accumulation where the global batch would change without it."""
    train = train if isinstance(train, Mapping) else {}
    sets: dict[KeyPath, Any] = {("train", "per_device_train_batch_size"): choice.micro_batch}
    if train.get("gradient_accumulation_steps") is not None or train.get("global_batch_size") is None:
        sets["train", "gradient_accumulation_steps"] = choice.accumulation
    return sets


def _value_at(raw: Mapping[str, Any], *path: str) -> Any:
    value: Any = raw
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def describe_changes(choice: PlanSettings, run: PlanSettings) -> str:
    """What differs from the run: `ZeRO-2, micro-batch 8 x 2, no checkpointing`."""
    parts = []
    places = (choice.stage, choice.optimizer_device, choice.param_device)
    if places != (run.stage, run.optimizer_device, run.param_device):
        parts.append(title_of(choice))
    if choice.micro_batch != run.micro_batch:
        parts.append(f"micro-batch {choice.micro_batch} x {choice.accumulation}")
    if choice.checkpointing != run.checkpointing:
        parts.append("checkpointing" if choice.checkpointing else "no checkpointing")
    return ", ".join(parts)
