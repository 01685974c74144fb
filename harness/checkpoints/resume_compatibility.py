# SPDX-License-Identifier: Apache-2.0
"""Compatibility of a resume: the changes between a checkpoint and the run that resumes from it, and their meaning.

Pure comparison of plain values; loads nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.checkpoints.change_meanings import SCALE_KEYS, Meaning, meaning_of, reason_of
from harness.checkpoints.effective_settings import RunNumbers, compare_effects, schedule_kind
from harness.checkpoints.manifest import Manifest
from harness.findings import Finding, Fix
from harness.spec.run_spec import RunSpec

_CONTENT_HASHES = {
    "data": (
        "data.train",
        "CK103",
        "was trained on other data than this run, where its position in the data is meaningless",
    ),
    "rows": ("data.train", "CK103", "was trained on other data than this run, where its position is meaningless"),
    "tokenizer": ("model.tokenizer", "CK107", "was trained with another tokenizer"),
    "chat_template": ("model.tokenizer", "CK107", "was trained with another chat template"),
    "model_config": ("model.name_or_path", "CK107", "is of a model with another configuration"),
    "plugin": ("plugins.file", "CK107", "was trained with other code in the plug-in"),
    "reference": ("model.name_or_path", "CK107", "was trained against another reference model"),
}
"""Hash in the manifest -> the key of the content, the finding, and the meaning of a difference."""

_LABELS = {
    "world": "ranks",
    "zero.stage": "ZeRO stage",
    "dtype": "weights in",
    "parallel.tensor_parallel_size": "tensor parallel degree",
    "parallel.pipeline_parallel_size": "pipeline stages",
    "parallel.sequence_parallel_size": "sequence parallel degree",
}


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting whose value has changed."""

    key: str
    was: Any
    now: Any
    meaning: Meaning


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes, in the order of the keys; `content_changes` are the hashes that differ."""

    changes: tuple[SettingChange, ...]
    content_changes: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    def with_meaning(self, meaning: Meaning) -> tuple[SettingChange, ...]:
        """The changes that mean this."""
        return tuple(c for c in self.changes if c.meaning == meaning)

    @property
    def layout_changes(self) -> tuple[SettingChange, ...]:
        """Changes for which state must be resharded (a universal checkpoint can be)."""
        return self.with_meaning("shape")

    @property
    def blocking_changes(self) -> tuple[SettingChange, ...]:
        """Changes that break the continuity of training and are not allowed by `--allow-change`."""
        return tuple(c for c in self.with_meaning("blocks") if not is_allowed(self.allowed, c.key))

    @property
    def fixed_changes(self) -> tuple[SettingChange, ...]:
        """Changes that a resume cannot apply, allowed or not."""
        return self.with_meaning("fixed")

    @property
    def notable_changes(self) -> tuple[SettingChange, ...]:
        """Changes that are reported and not refused, among them those that `--allow-change` allows."""
        allowed = [c for c in self.with_meaning("blocks") if is_allowed(self.allowed, c.key)]
        return (*self.with_meaning("notable"), *allowed)

    def to_findings(self, checkpoint: str, *, can_reshard: bool = False) -> list[Finding]:
        """Errors for blocking changes (CK103, CK107), one info for notable ones, and an error for another layout
        (CK102), unless the caller can reshard.
        """
        findings = [_layout_finding(checkpoint, self.layout_changes)] if self.layout_changes and not can_reshard else []
        for name in self.content_changes:
            key, gate, meaning = _CONTENT_HASHES[name]
            keys = (key, "model.config") if name == "model_config" else (key,)
            is_told = name == "rows" and "data" in self.content_changes
            if not is_told and not any(is_allowed(self.allowed, one) for one in keys):
                fix = Fix(f"use the same, start from that run's export, or allow the change: --allow-change {key}")
                findings.append(Finding(gate, "error", f"`{checkpoint}` {meaning}", key, fix=fix))
        findings += [_fixed_finding(checkpoint, change) for change in self.fixed_changes]
        if self.blocking_changes:
            findings.append(_blocking_finding(checkpoint, self.blocking_changes))
        if self.notable_changes:
            message = f"`{checkpoint}` was saved with other settings: {format_changes(self.notable_changes)}"
            fix = Fix("nothing, if this is intended: the trained state is kept")
            findings.append(Finding("CK109", "info", message, self.notable_changes[0].key, fix=fix))
        return findings


def compare_with_run(
    saved: Manifest,
    spec: Mapping[str, Any],
    *,
    world_size: int | None = None,
    sha256: Mapping[str, str | None] | None = None,
    dtype: str | None = None,
    allowed: Collection[str] = (),
    numbers: RunNumbers | None = None,
) -> Comparison:
    """Compare a checkpoint with the spec (`model_dump(mode="json")`) of the run that resumes from it.

    Hashes of contents, the number of ranks and the number format are compared where they are given: ranks know them,
    the launching side may not. `allowed` are keys or sections whose change is meant. Of batch and schedule the effect
    is compared, from `numbers`.
    """
    written = saved.get("spec") or {}
    is_imported = saved.get("imported") is not None  # its spec has what the other program states, and no more
    was = {
        **flatten(written if is_imported else _with_newer_fields(written, spec)),
        "world": saved.world_size,
        "dtype": saved.dtype,
    }
    now = {
        **flatten(spec),
        "world": saved.world_size if world_size is None else world_size,
        "dtype": dtype or saved.dtype,
    }
    if is_imported:
        now = {key: value for key, value in now.items() if key in was}
    meanings = _Meanings(saved.get("spec") or {}, spec)
    keyed = [SettingChange(k, was.get(k), now.get(k), meanings.of(k)) for k in _changed_keys(was, now)]
    effects = [
        SettingChange(key, old, new, "blocks" if matters else "notable")
        for key, old, new, matters in compare_effects(saved, spec, numbers or RunNumbers())
    ]
    changes = sorted((*(c for c in keyed if c.meaning != "effect"), *effects), key=lambda change: change.key)
    old = saved.get("sha256") or {}
    contents = [n for n in _CONTENT_HASHES if sha256 is not None and n in old and n in sha256 and old[n] != sha256[n]]
    return Comparison(tuple(changes), tuple(contents), tuple(allowed))


def _with_newer_fields(saved: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The saved spec, with the defaults of fields that came after the release that saved it."""
    return _fill(saved, spec, RunSpec.model_validate({}).model_dump(mode="json"))


def _fill(saved: Mapping[str, Any], spec: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(saved)
    for name, value in spec.items():
        if name not in saved:
            filled[name] = defaults.get(name)
        elif isinstance(saved[name], Mapping) and isinstance(value, Mapping):
            section = defaults.get(name)
            filled[name] = _fill(saved[name], value, section if isinstance(section, Mapping) else {})
    return filled


class _Meanings:
    """The meanings of changes between two specs: what neither reads is free, and what one cannot take over is fixed."""

    def __init__(self, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        kinds = (schedule_kind(was), schedule_kind(now))
        self._same_schedules = kinds[0] == kinds[1]
        self._continues_rate = "torch" in kinds
        self._fp16 = any((spec.get("precision") or {}).get("fp16") for spec in (was, now))

    def of(self, key: str) -> Meaning:
        """The meaning of a change of a dotted key."""
        if not self._fp16 and key in [f"precision.{name}" for name in SCALE_KEYS]:
            return "harmless"
        if key.startswith("deepspeed.scheduler") and (self._continues_rate or not self._same_schedules):
            return "fixed"
        rates = ("optimizer.learning_rate", "optimizer.adam_learning_rate")
        if self._continues_rate and (key in rates or key == "deepspeed.optimizer.params.lr"):
            return "fixed"
        return meaning_of(key)


def changed_settings(saved: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the training that a spec has otherwise, by dotted key, as they were saved; not how its state lies
    on ranks.
    """
    was, meanings = flatten(saved), _Meanings(saved, spec)
    keys = _changed_keys(was, flatten(spec))
    return {key: was.get(key) for key in keys if meanings.of(key) not in ("harmless", "shape")}


def is_allowed(allowed: Collection[str], key: str) -> bool:
    """Whether the key, or a section that it is in, is among those allowed."""
    return any(key == a or key.startswith(f"{a}.") for a in allowed)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested maps as dotted keys; a list is a value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _changed_keys(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Keys whose values differ. One that only one side has, without a value, is a field of another release."""
    empty: tuple[Any, ...] = (None, False, [], {})
    for key in sorted({*was, *now}):
        before, after = (_without_order(key, values.get(key)) for values in (was, now))
        if before != after and not (before in empty and after in empty):
            yield key


def _without_order(key: str, value: Any) -> Any:
    """LoRA's lists of modules and layers mean the same in any order."""
    return sorted(value, key=str) if key.startswith("model.lora.") and isinstance(value, list) else value


def format_changes(changes: Collection[SettingChange]) -> str:
    """`key` was -> now, separated by commas."""
    return ", ".join(f"`{c.key}` {format_value(c.was)} -> {format_value(c.now)}" for c in changes)


def format_value(value: Any) -> str:
    """A value as a user would write it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _layout_finding(checkpoint: str, changes: tuple[SettingChange, ...]) -> Finding:
    was = ", ".join(f"{_LABELS.get(c.key, c.key)} {format_value(c.was)}" for c in changes)
    now = ", ".join(f"{_LABELS.get(c.key, c.key)} {format_value(c.now)}" for c in changes)
    return Finding(
        "CK102",
        "error",
        f"`{checkpoint}` was saved with {was}, this run has {now}",
        changes[0].key if changes[0].key not in {"world", "dtype"} else "",
        notes=("DeepSpeed cannot load its own shards into another number of ranks, stage 1 to 3, or number format",),
        fix=Fix(f"resume with {was}"),
    )


def _way_back(change: SettingChange) -> str:
    if change.key == "train.global_batch_size":
        return (
            f"set `train.global_batch_size: {change.was}`, without `train.gradient_accumulation_steps`, which follows,"
            " and set a micro-batch that divides it"
        )
    return f"set `{change.key}` back"


def _fixed_finding(checkpoint: str, change: SettingChange) -> Finding:
    was, now = format_value(change.was), format_value(change.now)
    return Finding(
        "CK107",
        "error",
        f"`{checkpoint}` was trained with `{change.key}` {was}, this run has {now}, which a resume cannot apply",
        change.key,
        notes=(reason_of(change.key),),
        fix=Fix(f"set `{change.key}` back, or start from that run's export"),
    )


def _blocking_finding(checkpoint: str, changes: tuple[SettingChange, ...]) -> Finding:
    first = changes[0]
    keys = " ".join(f"--allow-change {c.key}" for c in changes)
    return Finding(
        "CK107",
        "error",
        f"`{checkpoint}` was trained with `{first.key}` {format_value(first.was)}, "
        f"this run has {format_value(first.now)}",
        first.key,
        notes=(f"changed since: {format_changes(changes)}",) if len(changes) > 1 else (),
        fix=Fix(f"{_way_back(first)}, start from that run's export, or allow the change: {keys}"),
    )


_IGNORED_FIELDS = ("files", "checksum", "name", "tag", "saved_at", "bytes", "shape")


def compare_manifests(one: Manifest, other: Manifest) -> list[SettingChange]:
    """Every field that is not the same, files and checksums left out. `meaning` is that of a change in the spec."""
    old, new = (flatten({k: v for k, v in m.body.items() if k not in _IGNORED_FIELDS}) for m in (one, other))
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return [SettingChange(key, old.get(key), new.get(key), meaning_of(key.removeprefix("spec."))) for key in keys]
