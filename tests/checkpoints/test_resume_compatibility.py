# SPDX-License-Identifier: Apache-2.0
"""Compatibility of a resume: the meaning of each change since the save."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.change_meanings import meaning_of
from harness.checkpoints.effective_settings import RunNumbers, saved_global_batch, saved_order_rows
from harness.checkpoints.manifest import read_manifest
from harness.checkpoints.resume_compatibility import Comparison, compare_with_run, is_allowed
from tests.support.sample_checkpoints import HASHES, SPEC, make


def against(tmp_path: Path, changes: dict[str, Any], allowed: tuple[str, ...] = (), **known: Any) -> Comparison:
    spec = copy.deepcopy(SPEC)
    for key, value in changes.items():
        section, _, field = key.partition(".")
        spec[section] = {**spec[section], field: value} if field else value
    return compare_with_run(read_manifest(make(tmp_path, 4)), spec, allowed=allowed, **known)


@pytest.mark.parametrize(
    ("saved", "data", "found"), [({}, "", []), ({"rows": "y"}, "", ["CK103"]), ({"rows": "y"}, "x", ["CK103"])]
)
def test_later_rows_are_compared_where_the_checkpoint_has_them(
    tmp_path: Path, saved: dict[str, str], data: str, found: list[str]
) -> None:
    """A checkpoint of a release without their hash resumes; where the first rows differ, too, it is one finding."""
    folder = make(tmp_path, 4, sha256={**HASHES, **saved})
    now = {**HASHES, "rows": "x", **({"data": data} if data else {})}
    comparison = compare_with_run(read_manifest(folder), copy.deepcopy(SPEC), sha256=now)
    assert [gate for gate, _ in ids(comparison)] == found


def ids(comparison: Comparison) -> list[tuple[str, str]]:
    return [(f.gate, f.severity) for f in comparison.to_findings("step-4")]


def test_nothing_changed(tmp_path: Path) -> None:
    assert ids(against(tmp_path, {}, world_size=2, dtype="bfloat16", sha256=HASHES)) == []


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("data.shuffle", False, [("CK107", "error")]),
        ("data.max_length", 64, [("CK107", "error")]),
        ("train.seed", 2, [("CK107", "error")]),
        ("optimizer.learning_rate", 1.0, [("CK107", "error")]),
        ("optimizer.of_another_release", None, []),
        ("a_new_section", {"x": 1}, [("CK107", "error")]),
        ("zero.stage", 3, [("CK102", "error")]),
        ("parallel.tensor_parallel_size", 2, [("CK102", "error")]),
        ("train.max_steps", 20, [("CK107", "error")]),
        ("train.max_grad_norm", 2.0, [("CK107", "error")]),
        ("optimizer.type", "sgd", [("CK107", "error")]),
        ("deepspeed", {"optimizer": {"params": {"lr": 1.0}}}, [("CK107", "error")]),
        ("deepspeed", {"aio": {"thread_count": 2}}, [("CK109", "info")]),
        ("precision", {"loss_scale": 8.0}, []),
        ("zero.reduce_bucket_size", 1000, [("CK109", "info")]),
        ("data.train", "/elsewhere/t.txt", []),
        ("model.name_or_path", "/elsewhere/m", []),
        ("checkpoint.save_steps", 7, []),
        ("name", "other", []),
        ("telemetry", {"profile_steps": "3", "trackers": ["csv"]}, []),
    ],
)
def test_one_change(tmp_path: Path, key: str, value: Any, expected: list[tuple[str, str]]) -> None:
    assert ids(against(tmp_path, {key: value})) == expected


def test_the_modules_of_adapters_have_no_order(tmp_path: Path) -> None:
    saved = read_manifest(make(tmp_path, 4))
    saved.body["spec"] = {**SPEC, "model": {**SPEC["model"], "lora": {"r": 4, "target_modules": ["up", "down"]}}}
    for modules, expected in ((["down", "up"], []), (["down"], ["CK107"])):
        spec = {**SPEC, "model": {**SPEC["model"], "lora": {"r": 4, "target_modules": modules}}}
        assert [finding.gate for finding in compare_with_run(saved, spec).to_findings("step-4")] == expected


def test_a_change_that_is_meant_is_told(tmp_path: Path) -> None:
    changes = {"data.shuffle": False, "train.seed": 3}
    refused = against(tmp_path, changes)
    (finding,) = refused.to_findings("step-4")
    assert finding.message == "`step-4` was trained with `data.shuffle` true, this run has false"
    assert finding.notes == ("changed since: `data.shuffle` true -> false, `train.seed` 1 -> 3",)
    assert "--allow-change data.shuffle --allow-change train.seed" in finding.fix.title
    assert ids(against(tmp_path, changes, ("data",))) == [("CK107", "error"), ("CK109", "info")]
    assert ids(against(tmp_path, changes, ("data", "train.seed"))) == [("CK109", "info")]


def test_contents_are_compared_by_their_hash(tmp_path: Path) -> None:
    assert ids(against(tmp_path, {}, sha256={**HASHES, "data": "x"})) == [("CK103", "error")]
    assert ids(against(tmp_path, {}, sha256={**HASHES, "chat_template": "x"})) == [("CK107", "error")]
    assert ids(against(tmp_path, {}, ("data.train",), sha256={**HASHES, "data": "x"})) == []


def test_another_shape_is_left_to_whoever_can_cut_anew(tmp_path: Path) -> None:
    comparison = against(tmp_path, {"zero.stage": 3}, world_size=4, dtype="float32")
    (finding,) = comparison.to_findings("step-4")
    assert finding.message == (
        "`step-4` was saved with weights in bfloat16, ranks 2, ZeRO stage 2, "
        "this run has weights in float32, ranks 4, ZeRO stage 3"
    )
    assert comparison.to_findings("step-4", can_reshard=True) == []


def test_the_longest_key_decides() -> None:
    assert meaning_of("train.max_steps") == "effect"
    assert meaning_of("model.lora.r") == "fixed"
    assert meaning_of("train.seed") == "blocks"
    assert meaning_of("data.train.0.path") == "harmless"
    assert meaning_of("what.nobody.knows") == "blocks"
    assert is_allowed(["data"], "data.shuffle")
    assert not is_allowed(["dat"], "data.shuffle")


def test_a_key_that_cannot_be_applied_is_refused_although_it_is_allowed(tmp_path: Path) -> None:
    (finding,) = against(tmp_path, {"optimizer.type": "sgd"}, ("optimizer",)).to_findings("step-4")
    assert finding.message == (
        "`step-4` was trained with `optimizer.type` adamw, this run has sgd, which a resume cannot apply"
    )
    assert "--allow-change" not in finding.fix.title
    step_lr = {"scheduler": {"type": "StepLR", "params": {"step_size": 2}}}
    assert ids(against(tmp_path, {"deepspeed": step_lr}, ("deepspeed", "optimizer", "train"))) == [
        ("CK107", "error"),
        ("CK107", "error"),
    ]


@pytest.mark.parametrize(
    ("changes", "batch", "expected"),
    [
        ({}, 4, []),
        ({}, 2, ["train.global_batch_size 4 2"]),
        ({"train.per_device_train_batch_size": 1}, 4, []),
        ({"train.per_device_train_batch_size": 1, "train.gradient_accumulation_steps": 2}, 4, []),
        ({"train.global_batch_size": 4}, 4, []),
        ({"train.global_batch_size": 8}, 8, ["train.global_batch_size 4 8"]),
    ],
)
def test_the_batch_is_compared_and_not_its_keys(
    tmp_path: Path, changes: dict[str, Any], batch: int, expected: list[str]
) -> None:
    comparison = against(tmp_path, changes, numbers=RunNumbers(batch))
    assert [f"{c.key} {c.was} {c.now}" for c in comparison.changes] == expected
    assert not against(tmp_path, changes, ("train.global_batch_size",), numbers=RunNumbers(batch)).blocking_changes


@pytest.mark.parametrize(
    ("saved", "now", "expected"),
    [
        ({}, {"train.max_steps": 20}, "train.max_steps"),
        ({"type": "constant"}, {"train.max_steps": 20}, ""),
        ({"type": "constant", "warmup_ratio": 0.2}, {"train.max_steps": 20}, ""),  # 2 and 4 steps, which are over
        ({"type": "constant", "warmup_ratio": 0.2}, {"train.max_steps": 40}, "train.max_steps"),
        ({"type": "inverse_sqrt", "warmup_steps": 2}, {"train.max_steps": 20}, ""),
        ({"type": "constant"}, {"scheduler.min_lr_ratio": 0.5}, ""),
        ({}, {"scheduler.min_lr_ratio": 0.5}, "scheduler.min_lr_ratio"),
        ({}, {"scheduler.power": 2.0}, ""),
        ({}, {"scheduler.type": "polynomial", "scheduler.power": 2.0}, "scheduler.power scheduler.type"),
        ({"warmup_ratio": 0.2}, {"scheduler.warmup_steps": 2}, ""),
        ({"warmup_ratio": 0.2}, {"scheduler.warmup_steps": 3}, "scheduler.warmup_steps"),
        ({"type": "warmup_stable_decay"}, {"scheduler.decay_steps": 1}, ""),
        ({"type": "warmup_stable_decay"}, {"scheduler.decay_steps": 3}, "scheduler.decay_steps"),
        ({}, {"train.max_steps": None, "train.num_train_epochs": 2.0}, ""),  # 2 epochs of 20 rows, 4 a step
        ({}, {"train.max_steps": None, "train.num_train_epochs": 3.0}, "train.num_train_epochs"),
    ],
)
def test_the_schedule_is_compared_and_not_its_keys(
    tmp_path: Path, saved: dict[str, Any], now: dict[str, Any], expected: str
) -> None:
    spec = {**copy.deepcopy(SPEC), "scheduler": saved}
    manifest = read_manifest(make(tmp_path, 4, spec=spec))
    for key, value in now.items():
        section, _, name = key.partition(".")
        spec[section] = {**spec[section], name: value}
    epochs, steps = spec["train"].get("num_train_epochs"), spec["train"]["max_steps"]
    comparison = compare_with_run(manifest, spec, numbers=RunNumbers(4, steps or int(epochs * 5), 20))
    assert " ".join(c.key for c in comparison.blocking_changes) == expected


def test_epochs_are_compared_before_their_rows_are_known(tmp_path: Path) -> None:
    spec = {**copy.deepcopy(SPEC), "train": {"num_train_epochs": 2.0, "per_device_train_batch_size": 2}}
    manifest = read_manifest(make(tmp_path, 4, spec=spec))
    assert not compare_with_run(manifest, spec, numbers=RunNumbers(4)).changes
    spec["train"] = {**spec["train"], "num_train_epochs": 3.0}
    (change,) = compare_with_run(manifest, spec, numbers=RunNumbers(4)).blocking_changes
    assert (change.key, change.was, change.now) == ("train.num_train_epochs", "2 epochs", "3 epochs")


def test_batch_and_order_of_a_checkpoint(tmp_path: Path) -> None:
    derived = read_manifest(make(tmp_path, 4))
    assert (saved_global_batch(derived), saved_order_rows(derived)) == (4, (4, 4))
    geometry = {"global_batch": 8, "order_micro_step": 2, "order_step": 4}
    recorded = read_manifest(make(tmp_path, 5, geometry=geometry))
    assert (saved_global_batch(recorded), saved_order_rows(recorded)) == (8, (2, 4))
