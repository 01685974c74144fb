# SPDX-License-Identifier: Apache-2.0
"""The DeepSpeed part of a file as values of a run spec, with a note for each value that the spec cannot keep."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from harness.convert.draft import Draft, NoteKind
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.spec import deepspeed_mapping
from harness.spec.auto_values import SIZED_BY_MODEL, find_auto_values
from harness.spec.deepspeed_optimizer import NAME_BY_CLASS
from harness.spec.deepspeed_value_checks import convert_as_deepspeed
from harness.spec.parse.source import KeyPath, Source, join_key, value_at
from harness.spec.spec_loader import LoadedSpec

_SPEC_KEYS_OF_AUTO = {
    "train_micro_batch_size_per_gpu": "train.per_device_train_batch_size",
    "bf16.enabled": "precision.bf16",
    "fp16.enabled": "precision.fp16",
    "zero_optimization.stage": "zero.stage",
}
_TRAINER_DEFAULTS: dict[str, Any] = {
    "optimizer.params.lr": 5e-5,
    "optimizer.params.betas": [0.9, 0.999],
    "optimizer.params.eps": 1e-8,
    "optimizer.params.weight_decay": 0.0,
    "scheduler.params.warmup_min_lr": 0,
    "scheduler.params.warmup_max_lr": 5e-5,
    "scheduler.params.warmup_num_steps": 1,
    "scheduler.params.total_num_steps": 1000,
}
"""Values that the Trainer fills in by default (transformers 5.23); its number of steps is unknown here."""
_SWITCHES = frozenset(("bf16.enabled", "fp16.enabled"))
_SAME_DEFAULT = frozenset(
    """train_batch_size gradient_accumulation_steps gradient_clipping optimizer.params.betas optimizer.params.eps
    optimizer.params.weight_decay""".split()
)
"""Keys for which the run spec has the Trainer's default, or derives them as it does."""
_LOSS_SCALING_DEFAULTS = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1,
}


def fill_from_deepspeed(
    draft: Draft, loaded: LoadedSpec, source: Source, target: DeepSpeedTarget, values: Mapping[str, Any] | None = None
) -> None:
    """Fill in every key of the DeepSpeed JSON; defaults that moved between releases have the value of this one.

    `values` are those of a training program for "auto", by DeepSpeed's keys; without them the Trainer's defaults count.
    """
    by_trainer = values is not None
    config = deepcopy(convert_as_deepspeed(source.data, target))
    _name_optimizer(draft, source, config)
    if values is None:
        values = _trainer_values(config)
    filled = _fill_auto_values(config, "", values)
    open_paths = [path for path in find_auto_values(source.data) if source.user_path(path) in source.spots]
    if by_trainer:
        open_paths = [
            path for path in open_paths if join_key(path) not in filled | _SWITCHES and path[0] != "scheduler"
        ]
    _add_auto_notes(draft, source, open_paths, filled)
    draft.spec, _ = deepspeed_mapping.map_deepspeed_json(config, normalize_optimizer=by_trainer)
    if draft.get("precision.fp16") is not True:
        trains_bf16 = draft.get("precision.bf16") is True or values.get("bf16.enabled") is True
        _drop_fp16(draft, source, config, trains_bf16=trains_bf16)
    _write_release_defaults(draft, config, target)
    device = draft.get("zero.offload_param.device")
    if device in ("cpu", "nvme") and draft.get("zero.stage") != 3:
        draft.drop(("zero", "offload_param"))
        place = source.place(("zero_optimization", "offload_param"), of_key=True)
        text = "`offload_param` is left out: DeepSpeed reads it at stage 3 only"
        draft.add_note(place, text, "harmless", "zero_optimization.offload_param")
    if draft.get("deepspeed.zero_optimization.cpu_offload_use_pin_memory") is not None:
        draft.drop(("deepspeed", "zero_optimization", "cpu_offload_use_pin_memory"))
        place = source.place(("zero_optimization", "cpu_offload_use_pin_memory"))
        text = "`cpu_offload_use_pin_memory` sets nothing in DeepSpeed: `pin_memory` does"
        draft.add_note(place, text, "harmless", "zero_optimization.cpu_offload_use_pin_memory")
    if loaded.consumer == "hf" and not by_trainer and "scheduler" not in config:
        draft.put("scheduler.type", "linear")


def _name_optimizer(draft: Draft, source: Source, config: dict[str, Any]) -> None:
    """Write DeepSpeed's name of an optimizer for that of its class, which a JSON does not take."""
    optimizer = config.get("optimizer")
    kind = optimizer.get("type") if isinstance(optimizer, dict) else None
    name = NAME_BY_CLASS.get(kind.lower()) if isinstance(kind, str) else None
    if name is not None:
        config["optimizer"]["type"] = name
        text = f"`{kind}` is a class, which DeepSpeed refuses in its JSON: {name} is what it is called there"
        draft.add_note(source.place(("optimizer", "type")), text, "harmless", "optimizer.type")


def fill_auto_values(config: Mapping[str, Any], values: Mapping[str, Any] | None) -> dict[str, Any]:
    """The JSON with the values that its program fills in for "auto"; None: the Trainer's defaults."""
    filled: dict[str, Any] = deepcopy(dict(config))
    _fill_auto_values(filled, "", _trainer_values(config) if values is None else values)
    return filled


def _trainer_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The Trainer's defaults for "auto"; the schedule's rate is that of the optimizer, which the Trainer compares."""
    rate = value_at(config, ("optimizer", "params", "lr"))
    return _TRAINER_DEFAULTS | ({"scheduler.params.warmup_max_lr": rate} if isinstance(rate, float) else {})


def _drop_fp16(draft: Draft, source: Source, config: dict[str, Any], *, trains_bf16: bool) -> None:
    """Remove loss scaling and the like, which only fp16 reads; a note for unusual values where fp16 may be on."""
    draft.drop(("precision", "fp16"))
    block = config.get("fp16")
    is_auto = isinstance(block, dict) and block.get("enabled") == "auto"
    for name, default in _LOSS_SCALING_DEFAULTS.items():
        value = draft.get(f"precision.{name}")
        draft.drop(("precision", name))
        if is_auto and not trains_bf16 and value not in (None, default):
            place = source.place(("fp16", name))
            text = f"`fp16.{name}` is left out: set `precision.{name}` to {value} with `precision.fp16`"
            draft.add_note(place, text, "manual", f"fp16.{name}")
    draft.drop(("deepspeed", "fp16"))


def _fill_auto_values(block: dict[str, Any], prefix: str, values: Mapping[str, Any]) -> set[str]:
    """Replace "auto" where there is a value for it; return these keys."""
    filled: set[str] = set()
    for name, value in block.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            filled |= _fill_auto_values(value, f"{key}.", values)
        elif value == "auto" and key in values:
            block[name] = values[key]
            filled.add(key)
    return filled


def _add_auto_notes(draft: Draft, source: Source, paths: list[KeyPath], filled: set[str]) -> None:
    buckets = [path for path in paths if path in SIZED_BY_MODEL]
    schedule = [path for path in paths if path[0] == "scheduler"]
    for path in paths:
        key, spec_key = join_key(path), _SPEC_KEYS_OF_AUTO.get(join_key(path))
        if path in [*buckets[1:], *schedule[1:]] or key in _SAME_DEFAULT:
            continue
        group = buckets if path in buckets else schedule if path in schedule else []
        count_note = f" and {len(group) - 1} more are" if len(group) > 1 else " is"
        consequence = f"set `{spec_key}`" if spec_key else "DeepSpeed's default applies"
        if path in SIZED_BY_MODEL:
            subject = "them" if len(group) > 1 else "it"
            consequence = f"the harness chooses {subject} by the model's layers (`harness render --reasons`)"
        if key in filled:
            value = _TRAINER_DEFAULTS[key]
            consequence = (
                "the harness's values replace the Trainer's" if path in schedule else f"{value} is its default"
            )
        kind: NoteKind = "manual" if spec_key or path in schedule else "harmless"
        text = f'`{key}`{count_note} "auto", which the Trainer fills in: {consequence}'
        draft.add_note(source.place(path), text, kind, key)


def _write_release_defaults(draft: Draft, config: dict[str, Any], target: DeepSpeedTarget) -> None:
    """Write the defaults of this release: the spec's own defaults may differ from the JSON's."""
    version = target.version
    if "gradient_clipping" not in config:
        draft.put("train.max_grad_norm", 1.0 if version >= (0, 19, 3) else 0.0)
    for section in ("offload_optimizer", "offload_param"):
        block = draft.get(f"zero.{section}")
        if isinstance(block, dict) and block.get("device") != "none":
            block.setdefault("pin_memory", version >= (0, 19, 5))
    overflow = "deepspeed.bf16.check_grad_overflow"
    if draft.get("precision.bf16") is True and draft.get(overflow) is None and version < (0, 19, 3):
        draft.put(overflow, False)
