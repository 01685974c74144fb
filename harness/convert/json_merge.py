# SPDX-License-Identifier: Apache-2.0
"""A training program's own settings and the DeepSpeed JSON that it names, merged as the program does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.convert.draft import Draft
from harness.convert.programs.arctic import ARCTIC_TRAINING
from harness.convert.trainer_config import TrainerConfig
from harness.convert.trainer_file import TrainerFile
from harness.spec.parse.source import Source


def auto_values(file: TrainerFile) -> dict[str, Any]:
    """The values that the Trainer fills in for "auto" in its DeepSpeed JSON, by dotted key (`integrations/deepspeed.py`
    of transformers 5.23: `trainer_config_process` and `trainer_config_finalize`).
    """
    get = file.draft.get
    rate = get("optimizer.learning_rate")
    values = {
        "train_micro_batch_size_per_gpu": get("train.per_device_train_batch_size"),
        "gradient_accumulation_steps": get("train.gradient_accumulation_steps") or 1,
        "gradient_clipping": _or_default(get("train.max_grad_norm"), 1.0),
        "optimizer.params.lr": rate,
        "optimizer.params.betas": get("optimizer.betas") or [0.9, 0.999],
        "optimizer.params.eps": get("optimizer.eps") or 1e-8,
        "optimizer.params.weight_decay": _or_default(get("optimizer.weight_decay"), 0.0),
        "scheduler.params.warmup_min_lr": 0,
        "scheduler.params.warmup_max_lr": rate,
        "scheduler.params.total_num_steps": get("train.max_steps"),
        "scheduler.params.warmup_num_steps": _warmup_steps(file),
        "bf16.enabled": get("precision.bf16") or None,
        "fp16.enabled": get("precision.fp16") or None,
    }
    return {key: value for key, value in values.items() if value is not None}


def _or_default(value: Any, default: Any) -> Any:
    return default if value is None else value


def _warmup_steps(file: TrainerFile) -> int | None:
    steps, ratio = file.draft.get("scheduler.warmup_steps"), file.draft.get("scheduler.warmup_ratio")
    total = file.draft.get("train.max_steps")
    if isinstance(steps, int) and steps:
        return steps
    if not ratio:
        return 1
    return max(1, -int(-ratio * total // 1)) if isinstance(total, int) and isinstance(ratio, (int, float)) else None


def merge_trainer_fields(draft: Draft, config: TrainerConfig) -> None:
    """Add the program's own fields to the draft of its DeepSpeed JSON, whose values stay where both have a key."""
    file, source = config.file, config.loaded.source
    if file is None or source is None:
        return
    _merge_schedule(draft, file, source)
    for key, value in _leaves(file.draft.spec, ""):
        if value is None or _is_decided_by_json(draft, source, key):
            continue
        current = draft.get(key)
        if config.has_json and key == "train.max_grad_norm" and "gradient_clipping" not in source.data:
            if value != current and file.program is not ARCTIC_TRAINING:
                _add_clipping_note(file, value, current)
            continue
        if current is None or current == value or not source.has_key(key) or _overwrites_json(file, key):
            draft.put(key, value, file.draft.remarks.get(key, ""))
        elif key in _COMPARED_BY_TRAINER and file.program is not ARCTIC_TRAINING:
            _add_mismatch_note(file, key, value, current)
    is_off_by_default = config.has_json and file.program.name in ("the Trainer", "TRL", "LLaMA-Factory")
    for name in ("bf16", "fp16") if is_off_by_default else ():
        block = source.data.get(name)
        if isinstance(block, Mapping) and block.get("enabled") is True and not file.draft.get(f"precision.{name}"):
            _add_mismatch_note(file, name, False, True)
    draft.notes = [*draft.notes, *file.draft.notes]
    draft.files |= file.draft.files


def _is_decided_by_json(draft: Draft, source: Source, key: str) -> bool:
    """Has the JSON an optimizer or a schedule of its own? Of an optimizer that a run spec has, the rate is compared."""
    section = key.split(".", maxsplit=1)[0]
    if section not in ("optimizer", "scheduler"):
        return False
    is_kept = draft.get(f"deepspeed.{section}") is not None
    has_optimizer = section == "optimizer" and source.data.get("optimizer") is not None
    return is_kept or (has_optimizer and key != "optimizer.learning_rate")


_COMPARED_BY_TRAINER = frozenset(
    """train.per_device_train_batch_size train.gradient_accumulation_steps train.max_grad_norm precision.bf16
    precision.fp16 optimizer.learning_rate optimizer.betas optimizer.eps optimizer.weight_decay""".split()
)
"""Fields whose values in the JSON must be those of TrainingArguments, defaults too (`fill_match` in transformers)."""


def _overwrites_json(file: TrainerFile, key: str) -> bool:
    """ArcticTraining writes its own sizes into the JSON, whatever stands there (`build_deepspeed_config`)."""
    own = ("train.per_device_train_batch_size", "train.gradient_accumulation_steps", "parallel.sequence_parallel_size")
    return file.program is ARCTIC_TRAINING and key in own


def _leaves(spec: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in spec.items():
        key = f"{prefix}{name}"
        found += _leaves(value, f"{key}.") if isinstance(value, dict) and value else [(key, value)]
    return found


def _merge_schedule(draft: Draft, file: TrainerFile, source: Source) -> None:
    """A DeepSpeed schedule with "auto" values, which the Trainer runs whatever its own is; in a spec's words where the
    steps are unknown.
    """
    block = source.data.get("scheduler")
    params = block.get("params") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(params, dict) or "auto" not in params.values():
        return
    filled = auto_values(file)
    missing = [name for name, value in params.items() if value == "auto" and f"scheduler.params.{name}" not in filled]
    kind = {"WarmupDecayLR": "linear", "WarmupLR": "constant", "WarmupCosineLR": "cosine"}.get(str(block.get("type")))
    if not missing or kind is None:
        return
    draft.drop(("deepspeed", "scheduler"))
    place = source.place(("scheduler",), of_key=True)
    own = file.draft.get("scheduler.type")
    file.put("scheduler.type", kind)
    text = f"`scheduler` is `{block['type']}`, which the Trainer runs: written as `scheduler.type: {kind}`"
    if own not in (None, kind):
        text += f", not the file's own `{own}`"
    if kind != "cosine" and params.get("warmup_type", "log") == "log":
        text += "; its warm-up is logarithmic there, and linear here"
    draft.add_note(place, text, "lossy", "scheduler")


def _add_clipping_note(file: TrainerFile, value: Any, current: Any) -> None:
    name = "max_grad_norm"
    place = file.source.place((name,), of_key=True)
    text = (
        f"`{name}` is {value}, but the JSON has no `gradient_clipping`: DeepSpeed clips at {current}, as the spec does"
    )
    file.draft.add_note(place, text, "harmless", name)


def _add_mismatch_note(file: TrainerFile, key: str, value: Any, current: Any) -> None:
    name = next((name for name, spec_key in file.program.keys.items() if spec_key == key and name in file.values), key)
    place = file.source.place((name,), of_key=True)
    text = (
        f"`{name}` is {value}, the DeepSpeed JSON says {current}: the Trainer refuses the pair; the spec has {current}"
    )
    file.draft.add_note(place, text, "manual", name)
