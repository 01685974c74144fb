# SPDX-License-Identifier: Apache-2.0
"""Saves that cannot be written, and resumes from checkpoints that cannot be trusted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.latest import find_latest
from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "checkpoint_cases.py"
FEW = {
    "train": {"max_steps": 2, "gradient_accumulation_steps": 1},
    "eval": {"eval_steps": None},
    "checkpoint": {"save_steps": 1},
}


def run(forked: ForkedRanks, model: Path, folder: Path, name: str, actions: list[Any], **settings: Any) -> list[Any]:
    case = {"name": name, "case": "zero2-cpu", "settings": {**FEW, **settings}, "actions": actions}
    plan = folder / f"{name}.json"
    plan.write_text(json.dumps({"folder": str(folder), "model": str(model), "cases": [case]}))
    forked.run(JOB, str(plan))
    return list(json.loads((folder / name / "results.json").read_text()))


FAULTS = ("truncate", "flip", "delete", "empty", "swap", "manifest-missing", "manifest-edited", "pickle")


@pytest.fixture(scope="module")
def refused(forked: ForkedRanks, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A run saved at 1 and 2; then, for each fault, a copy of 2 that has it, and what a resume from it gave."""
    folder = tmp_path_factory.mktemp("faults")
    actions: list[Any] = [["make", "a"], ["train", "a"], ["make", "b"], ["build", "b"]]
    for fault in FAULTS:
        actions += [["damage", "a/checkpoints/step-00000002", fault], ["resume", fault]]
    return folder / "case", run(forked, tiny_model, folder, "case", actions)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_resume_from_a_damaged_checkpoint_is_refused_on_all_ranks(
    refused: tuple[Path, list[Any]], fault: str
) -> None:
    folder, results = refused
    answers = results[5 + 2 * FAULTS.index(fault)]
    expected = {"manifest-edited": "CK108", "pickle": "CK111"}.get(fault, "CK101")
    assert [[gate for gate, _ in answer] for answer in answers] == [[expected] * len(answers[0])] * 2
    if fault == "pickle":
        assert "`pathlib.Path`" in answers[0][0][1]
        assert not (folder / "marker").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MiB, which a test may make larger or smaller."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs root that may mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_at_every_write_keeps_the_earlier_checkpoint(
    forked: ForkedRanks, tiny_model: Path, tmp_path: Path, small_disk: Path
) -> None:
    """The room left is swept from nothing to just too little; the look before the write is turned off for most."""
    kib = (0, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 240)
    actions: list[Any] = [["make", "a"], ["build", "a"], ["save_on", str(small_disk), None, True]]
    actions += [["save_on", str(small_disk), room, False] for room in kib]
    actions += [["save_on", str(small_disk), 40, True], ["save_on", str(small_disk), None, True]]
    results = run(forked, tiny_model, tmp_path, "full", actions)
    first, *swept, looked, last = results[2:]
    assert first["errors"] == []
    for result in [*swept, looked]:
        (error,) = result["errors"]
        assert "no space left on device; it needs" in error
        assert "are free in" in error
        assert result["complete"] == ["step-00000001"], result
        assert result["latest"] == "step-00000001\n"
        assert result["left"] == []
    assert last["errors"] == []
    assert last["complete"] == ["step-00000002", "step-00000001"]


def test_a_folder_that_is_gone_or_read_only_is_told_and_training_goes_on_or_stops(
    forked: ForkedRanks, tiny_model: Path, tmp_path: Path
) -> None:
    block = ["block", "a/checkpoints/.tmp-step-00000001"]
    going_on = run(
        forked,
        tiny_model,
        tmp_path,
        "on",
        [["make", "a"], block, ["train", "a"]],
        checkpoint={"save_steps": 1, "on_save_error": "continue"},
    )
    assert going_on[2]["step"] == 2
    lines = [json.loads(line) for line in (tmp_path / "on" / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [(x["type"], x["step"]) for x in lines if x["type"].startswith("save")] == [("save_failed", 1), ("save", 2)]
    assert find_latest(tmp_path / "on" / "a" / "checkpoints", verify="sizes")[0] is not None
    stopping = run(forked, tiny_model, tmp_path, "stop", [["make", "a"], block, ["train", "a"]])
    ((gate, message),) = stopping[2]["refused"]
    assert gate == "CK110"
    assert message.startswith("the checkpoint of step 1 could not be saved on rank 0: ")
