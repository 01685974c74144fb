# SPDX-License-Identifier: Apache-2.0
"""Compatibility of a resume: the meaning of each change since the save."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.manifest import read_manifest
from harness.checkpoints.resume_compatibility import Comparison, compare_with_run, is_allowed, meaning_of
from tests.support.sample_checkpoints import HASHES, SPEC, make


def against(tmp_path: Path, changes: dict[str, Any], allowed: tuple[str, ...] = (), **known: Any) -> Comparison:
    spec = copy.deepcopy(SPEC)
    for key, value in changes.items():
        section, _, field = key.partition(".")
        spec[section] = {**spec[section], field: value} if field else value
    return compare_with_run(read_manifest(make(tmp_path, 4)), spec, allowed=allowed, **known)


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
        ("train.max_steps", 20, [("CK109", "info")]),
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
    assert meaning_of("train.max_steps") == "notable"
    assert meaning_of("train.seed") == "blocks"
    assert meaning_of("data.train.0.path") == "harmless"
    assert meaning_of("what.nobody.knows") == "blocks"
    assert is_allowed(["data"], "data.shuffle")
    assert not is_allowed(["dat"], "data.shuffle")
