# SPDX-License-Identifier: Apache-2.0
"""Compatibility of a resume: the changes between a checkpoint and the run that resumes from it, and their meaning.

Pure comparison of plain values; loads nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.checkpoints.manifest import Manifest
from harness.findings import Finding, Fix
from harness.spec.section_fields import list_spec_keys

Meaning = Literal["shape", "blocks", "notable", "harmless"]

_MEANINGS: dict[str, Meaning] = {
    # the layout of state over ranks: DeepSpeed cannot load its own shards into another layout
    "zero.stage": "shape",
    "zero.round_robin_gradients": "shape",
    "zero.sub_group_size": "shape",
    "parallel": "shape",
    "world": "shape",
    "dtype": "shape",
    # model and data: a position in the data means nothing in another order
    "model": "blocks",
    "data": "blocks",
    "optimizer": "blocks",
    "precision": "blocks",
    "train": "blocks",
    # the hash of the content decides; the file may have moved
    "model.name_or_path": "harmless",
    "model.revision": "harmless",
    "model.tokenizer": "harmless",
    "model.attn_implementation": "notable",
    "model.trust_remote_code": "harmless",
    "data.train": "harmless",
    "data.eval": "harmless",
    "plugins.file": "harmless",
    **dict.fromkeys(("data.cache_dir", "data.num_proc", "data.streaming", "data.chat_template"), "harmless"),
    "data.pad_to_multiple_of": "notable",
    # training resumes from the same state, by other rules
    "scheduler": "notable",
    "train.max_steps": "notable",
    "train.num_train_epochs": "notable",
    "train.max_grad_norm": "notable",
    "train.per_device_train_batch_size": "notable",
    "train.gradient_accumulation_steps": "notable",
    "train.gradient_checkpointing": "harmless",
    "train.loss_chunk_size": "harmless",
    "train.mlp_tile_size": "harmless",
    "zero": "notable",
    "deepspeed": "notable",
    "tuned_defaults": "notable",
    "choices": "notable",  # its name in checkpoints that were saved before it had this one
    # what a run logs and keeps
    **dict.fromkeys(("name", "checkpoint", "eval", "export", "logging", "launch", "cluster", "ignore"), "harmless"),
    **dict.fromkeys(("telemetry", "allow_undocumented"), "harmless"),
}
"""Dotted key or section -> the meaning of a change. The longest match decides; a key without one blocks."""

_CONTENT_HASHES = {
    "data": (
        "data.train",
        "CK103",
        "was trained on other data than this run, where its position in the data is meaningless",
    ),
    "tokenizer": ("model.tokenizer", "CK107", "was trained with another tokenizer"),
    "chat_template": ("model.tokenizer", "CK107", "was trained with another chat template"),
    "model_config": ("model.name_or_path", "CK107", "is of a model with another configuration"),
    "plugin": ("plugins.file", "CK107", "was trained with other code in the plug-in"),
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
            if not is_allowed(self.allowed, key):
                fix = Fix(f"use the same, start from that run's export, or allow the change: --allow-change {key}")
                findings.append(Finding(gate, "error", f"`{checkpoint}` {meaning}", key, fix=fix))
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
) -> Comparison:
    """Compare a checkpoint with the spec (`model_dump(mode="json")`) of the run that resumes from it.

    Hashes of contents, the number of ranks and the number format are compared where they are given: ranks know them,
    the launching side may not. `allowed` are keys or sections whose change is meant.
    """
    was = {**flatten(saved.get("spec") or {}), "world": saved.world_size, "dtype": saved.dtype}
    now = {
        **flatten(spec),
        "world": saved.world_size if world_size is None else world_size,
        "dtype": dtype or saved.dtype,
    }
    changes = [SettingChange(k, was.get(k), now.get(k), meaning_of(k)) for k in _changed_keys(was, now)]
    old = saved.get("sha256") or {}
    contents = [n for n in _CONTENT_HASHES if sha256 is not None and n in old and n in sha256 and old[n] != sha256[n]]
    return Comparison(tuple(changes), tuple(contents), tuple(allowed))


def find_compared_keys() -> frozenset[str]:
    """Everything that `--allow-change` can name, but for keys inside a map: sections, keys, and facts of a run."""
    return frozenset((*list_spec_keys(), *_MEANINGS, *(key for key, _, _ in _CONTENT_HASHES.values()), "dtype"))


def meaning_of(key: str) -> Meaning:
    """The meaning of a change of this dotted key."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        meaning = _MEANINGS.get(".".join(parts[:length]))
        if meaning:
            return meaning
    return "blocks"


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
        if was.get(key) != now.get(key) and not (was.get(key) in empty and now.get(key) in empty):
            yield key


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
        fix=Fix(f"set `{first.key}` back, start from that run's export, or allow the change: {keys}"),
    )
