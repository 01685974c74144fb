# SPDX-License-Identifier: Apache-2.0
"""`harness adopt --verify`: the DeepSpeed JSON that a file names, filled in as its program does, against the JSON that
`harness render` makes of the run spec, key by key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.convert.accelerate_launch import find_missing_json
from harness.convert.conversion import ConvertedSpec
from harness.convert.deepspeed_config import fill_auto_values
from harness.convert.json_merge import auto_values
from harness.facts.deepspeed_keys import MISSING, block_keys
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.render import render_ds_config
from harness.render.ds_config import render_with_tuned_defaults
from harness.run.resolved_run import resolve_run
from harness.spec.auto_values import SIZED_BY_MODEL
from harness.spec.deepspeed_mapping import leaves_by_current_name, spec_field_of
from harness.spec.deepspeed_value_checks import convert_as_deepspeed
from harness.spec.parse.source import KeyPath, join_key
from harness.spec.spec_loader import load_spec

Relation = Literal["same", "differs", "only there", "only here"]
_OWN_PROGRESS = frozenset(("steps_per_print", "wall_clock_breakdown"))
_ABSENT: Any = object()


class ComparedKey(NamedTuple):
    """One key of the two configurations. An empty `why` explains nothing: the conversion changed something."""

    key: str
    relation: Relation
    there: Any
    here: Any
    why: str = ""


@dataclass(frozen=True)
class ConfigComparison:
    """All keys of both; `name` is the JSON's, empty if the file has none."""

    name: str
    keys: tuple[ComparedKey, ...]
    ranks: int

    @property
    def unexplained(self) -> tuple[ComparedKey, ...]:
        """The differences without a reason."""
        return tuple(item for item in self.keys if item.relation != "same" and not item.why)


def compare_configs(
    converted: ConvertedSpec, target: DeepSpeedTarget, world_size: int | None = None
) -> ConfigComparison:
    """The comparison for a number of ranks: that of the spec, of the script, or one."""
    source = converted.loaded.source
    loaded = load_spec("spec.yaml", (), target, text=converted.text)
    if source is None or loaded.spec is None:
        return ConfigComparison("", (), 1)
    trainer = converted.trainer
    parallel = loaded.spec.parallel
    smallest = parallel.tensor_parallel_size * parallel.pipeline_parallel_size * parallel.sequence_parallel_size
    asked = world_size or (trainer.file.ranks if trainer is not None and trainer.file is not None else None)
    run = resolve_run(loaded.spec, world_size=asked)
    if run.parallel_dims.world_size is None:
        run = resolve_run(loaded.spec, world_size=smallest)
    name = _json_name(converted)
    if not name:
        return ConfigComparison("", (), run.parallel_dims.world_size or 1)
    plain = render_ds_config(run)
    _, rendered = render_with_tuned_defaults(run, Path.cwd())
    reasons = _Reasons(converted, target, rendered.reasons, frozenset(set(rendered.reasons) - set(plain.reasons)))
    there = leaves_by_current_name(convert_as_deepspeed(_fill_as_program(converted, run.parallel_dims.data), target))
    here = leaves_by_current_name(dict(rendered.config))
    keys = tuple(_compare_keys(there, here, reasons))
    return ConfigComparison(name, keys, run.parallel_dims.world_size or 1)


def _json_name(converted: ConvertedSpec) -> str:
    if find_missing_json(converted.loaded):
        return ""
    if converted.trainer is None:
        return Path(converted.loaded.file).name
    if converted.trainer.json_file:
        return Path(converted.trainer.json_file).name
    return f"`deepspeed` of {Path(converted.loaded.file).name}" if converted.trainer.has_json else ""


def _fill_as_program(converted: ConvertedSpec, replicas: int | None) -> dict[str, Any]:
    """The JSON with "auto" replaced, and with the keys that the program adds."""
    source, trainer = converted.loaded.source, converted.trainer
    config = dict(source.data) if source is not None else {}
    file = trainer.file if trainer is not None else None
    values = auto_values(file) if file is not None else None
    written = {key: value for key, value in config.items() if isinstance(value, int)}
    batch = _batch_size({**(values or {}), **written}, replicas)
    if values is not None:
        values = {**values, **({"train_batch_size": batch} if batch is not None else {})}
        switches = {f"{name}.enabled": values.get(f"{name}.enabled", False) for name in ("bf16", "fp16")}
        values = {**values, **switches}
    filled = fill_auto_values(config, values)
    if converted.loaded.format == "arctic-yaml":
        keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
        filled = {**{key: (values or {})[key] for key in keys if key in (values or {})}, **filled}
        filled.setdefault("zero_optimization", {"stage": 2})
        if batch is not None:
            filled["train_batch_size"] = batch
        if "bfloat16" not in filled and "bf16" not in filled and (values or {}).get("bf16.enabled"):
            filled["bf16"] = {"enabled": True}
    return filled


def _batch_size(values: Mapping[str, Any], replicas: int | None) -> int | None:
    micro, steps = values.get("train_micro_batch_size_per_gpu"), values.get("gradient_accumulation_steps")
    if not isinstance(micro, int) or not isinstance(steps, int) or replicas is None:
        return None
    return micro * steps * replicas


def _compare_keys(
    there: Mapping[KeyPath, Any], here: Mapping[KeyPath, Any], reasons: _Reasons
) -> Iterator[ComparedKey]:
    there, here = _with_plain_names(there), _with_plain_names(here)
    for path in sorted(there.keys() | here.keys(), key=join_key):
        left, right = there.get(path, _ABSENT), here.get(path, _ABSENT)
        key = join_key(path)
        if right is _ABSENT:
            yield ComparedKey(key, "only there", left, None, reasons.explain_missing(path, left, there))
        elif left is _ABSENT:
            yield ComparedKey(key, "only here", None, right, reasons.explain_added(path, right))
        elif _is_same(left, right):
            yield ComparedKey(key, "same", left, right)
        else:
            yield ComparedKey(key, "differs", left, right, reasons.explain_change(path, left, right))


def _with_plain_names(leaves: Mapping[KeyPath, Any]) -> dict[KeyPath, Any]:
    """An optimizer's name without regard to case."""
    return {path: str(value).lower() if path == ("optimizer", "type") else value for path, value in leaves.items()}


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return list(left) == list(right)
    return bool(left == right)


@dataclass(frozen=True)
class _Reasons:
    """The reasons for differences: notes of the conversion, DeepSpeed's defaults, and the renderer's own."""

    converted: ConvertedSpec
    target: DeepSpeedTarget
    rendered: Mapping[str, str]
    tuned: frozenset[str]

    def explain_missing(self, path: KeyPath, value: Any, there: Mapping[KeyPath, Any]) -> str:
        """The reason why a key of the JSON is not rendered."""
        key = join_key(path)
        blocks = [path[:end] for end in range(1, len(path))]
        off = [b for b in blocks if there.get((*b, "enabled")) is False or there.get((*b, "device")) == "none"]
        reasons = (
            (value == "auto" and path in SIZED_BY_MODEL, _BY_WIDTH),
            (value == "auto", "not filled in: DeepSpeed's default"),
            (self._default(path) == value, "DeepSpeed's default"),
            (bool(off), f"not read: `{join_key(off[0])}` is off" if off else ""),
            (key == "train_batch_size", "the product of micro-batch, accumulation steps and ranks"),
            (self._is_in_optimizer_type(path), "part of the optimizer, which the spec names"),
            (key == "data_parallel_size" and self._is_accelerate, "derived from `parallel.sequence_parallel_size`"),
            (key in _OWN_PROGRESS, "the harness prints its own progress"),
        )
        return next((text for holds, text in reasons if holds), "") or self._note(path)

    def explain_added(self, path: KeyPath, value: Any) -> str:
        """The reason why the renderer writes a key that the JSON does not have."""
        key = join_key(path)
        if key in self.tuned or key.startswith("bf16.check") or key in _OWN_PROGRESS or key == "train_batch_size":
            return self.rendered.get(key, "")
        if self._default(path) == value:
            return "DeepSpeed's default, written out"
        trainer = self.converted.trainer
        draft = trainer.file.draft if trainer is not None and trainer.file is not None else None
        field = spec_field_of(path)
        if key == "sequence_parallel_size" and self._is_accelerate:
            return "accelerate makes these groups from `parallelism_config_sp_size`"
        if path[0] == "optimizer":
            return f"{self.converted.program or 'the script'} creates the optimizer; here DeepSpeed does"
        reason = self.rendered.get(key, "")
        fields = [join_key(field)] if field else re.findall(r"`([a-z_.]+)`", reason)
        if draft is not None and any(draft.get(name) is not None for name in fields):
            return f"{self.converted.program} passes it on: `{fields[0]}`"
        is_own = key in _WRITTEN_ALWAYS or reason.startswith("derived:")
        return reason if is_own else self._note(path)

    def explain_change(self, path: KeyPath, left: Any, right: Any) -> str:
        """The reason why a key has another value."""
        if left == "auto":
            key = join_key(path)
            return _BY_WIDTH if path in SIZED_BY_MODEL else f"not filled in: {self.rendered.get(key, right)}"
        return self._note(path)

    @property
    def _is_accelerate(self) -> bool:
        return self.converted.loaded.format == "accelerate-yaml"

    def _default(self, path: KeyPath) -> Any:
        key = (block_keys(join_key(path[:-1])) or {}).get(str(path[-1]))
        return key.default_at(self.target.version) if key is not None else MISSING

    def _is_in_optimizer_type(self, path: KeyPath) -> bool:
        return (
            path[0] == "optimizer" and path[-1] in ("adam_w_mode", "torch_adam") and "optimizer.type" in self.rendered
        )

    def _note(self, path: KeyPath) -> str:
        """The message of the note about a key, or about a block above it."""
        field = spec_field_of(path)
        names = {join_key(path[:end]) for end in range(1, len(path) + 1)} | ({join_key(field)} if field else set())
        program_keys = (
            self.converted.trainer.file.program.keys if self.converted.trainer and self.converted.trainer.file else {}
        )
        names |= {name for name, key in program_keys.items() if field and key == join_key(field)}
        if names & _BATCH_FIELDS:
            names |= {name for name, key in program_keys.items() if key in _BATCH_FIELDS}
        return next((note.message for note in self.converted.notes if note.key and note.key in names), "")


_BATCH_FIELDS = frozenset(("train.per_device_train_batch_size", "train.gradient_accumulation_steps"))
_BY_WIDTH = "filled in from the model's width; the harness has its own rule or DeepSpeed's default"
_WRITTEN_ALWAYS = frozenset(("gradient_clipping", "zero_optimization.stage", "zero_allow_untested_optimizer"))
