# SPDX-License-Identifier: Apache-2.0
"""`harness.watch` and `HarnessCallback` on two ranks: clean trainings pass, faults stop them, errors of ours do not."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.findings import Finding, Fix
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import JOBS

CLEAN: dict[str, dict[str, Any]] = {
    "bare, stage 2": {"stage": 2, "parts": 2, "steps": 21},
    "bare, stage 3, bf16": {"stage": 3, "parts": 2, "format": "bf16", "clip": 0.1},
    "bare, stage 0, tied": {"stage": 0, "tied": True},
    "bare, stage 1, OneCycle": {
        "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}},
        "json": {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}}},
    },
    "accelerate, stage 1": {"program": "accelerate", "parts": 2},
    "trainer, stage 2": {"program": "trainer", "stage": 2, "parts": 2, "clip": 0.5},
    "trainer, stage 3": {"program": "trainer", "stage": 3, "parts": 2},
    "bare, a hook of the script": {"stage": 2, "fault": "mask_gradients", "steps": 3},
}
"""A sample of `benchmarks/watch_clean_runs.py`."""
FAULTY: dict[str, dict[str, Any]] = {
    "AT028": {"fault": "halve_gradients", "optimizer": "SGD"},
    "AT030": {"fault": "move_a_replica"},
    "AT001": {"json": {"zero_optimization": {"stage": 2}}},
    "AT005": {"json": {"bf16": {"enabled": True}}},
    "AT006": {"json": {"gradient_clipping": 0.5}},
    "AT007": {"json": {"gradient_accumulation_steps": 4}},
    "AT014": {"json": {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.5]}}}},
}
"""By the check that finds it."""
OTHER: dict[str, dict[str, Any]] = {
    "warn": {"fault": "halve_gradients", "optimizer": "SGD", "on_difference": "warn"},
    "write": {"fault": "halve_gradients", "optimizer": "SGD", "on_difference": "write"},
    "our own error": {"fault": "break_an_observation", "steps": 21},
    "no place to write": {"fault": "break_the_output"},
    "detached": {"fault": "close_it"},
    "errors": {"fault": "make_errors"},
    "a setting of the script": {"fault": "set_clip_grad", "clip": 0.1},
}


@pytest.fixture(scope="module")
def outcomes(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Case -> the outcome on each rank; all cases in the same two processes."""
    folder, cases = tmp_path_factory.mktemp("watch"), CLEAN | FAULTY | OTHER
    (folder / "cases.json").write_text(json.dumps(list(cases.values())))
    forked.run(JOBS / "watch_many.py", str(folder / "out.json"), str(folder / "cases.json"))
    ranks = json.loads((folder / "out.json").read_text())["ranks"]
    return {name: [outcomes[number] for outcomes in ranks] for number, name in enumerate(cases)}


def state_of(file: dict[str, Any], check: str) -> str:
    return next(claim["state"] for claim in file["claims"] if claim["id"] == check)


@pytest.mark.parametrize("name", CLEAN)
def test_no_alarm(name: str, outcomes: dict[str, list[dict[str, Any]]]) -> None:
    for outcome in outcomes[name]:
        assert (outcome["ids"], outcome["error"]) == ([], "")
        assert "harness.watch on rank" not in outcome["said"]
    file = outcomes[name][0]["file"]
    holds = sum(claim["state"] == "holds" for claim in file["claims"])
    said = [[line for line in outcome["said"].splitlines() if "checks hold" in line] for outcome in outcomes[name]]
    step = min(4, file["steps"])
    assert [len(lines) for lines in said] == [1, 0]
    assert re.match(rf"harness\.watch: step {step}: 1\d checks hold, \d+ were skipped", said[0][0])
    assert (file["has_ended"], file["steps"]) == (True, CLEAN[name].get("steps", 5))
    assert file["gradient_witness"] == {"steps": [1, 2, 3], "unable": "", "limits": [], "fault": ""}
    assert not [claim for claim in file["claims"] if claim["state"] == "differs" or "could not" in str(claim)]
    assert holds >= 12


@pytest.mark.parametrize("check", FAULTY)
def test_a_difference_stops_every_rank(check: str, outcomes: dict[str, list[dict[str, Any]]]) -> None:
    assert [outcome["ids"] for outcome in outcomes[check]] == [[check], [check]]
    assert f"error[{check}]: " in outcomes[check][1]["error"]
    file = outcomes[check][0]["file"]
    assert state_of(file, check) == "differs"
    assert [row["gate"] for row in file["differences"]] == [check]


def test_a_setting_of_the_script_is_no_fault_of_deepspeed(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    text = outcomes["a setting of the script"][1]["error"]
    assert "`clip_grad` is not the `gradient_clipping` of the engine (0, not 0.1)" in text
    assert "help: remove what sets `clip_grad`" in text


def test_betas_are_a_pair_and_no_checkpoint_is_named_without_one(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    error = outcomes["AT014"][0]["error"]
    assert "`betas` is [0.9, 0.999], should be [0.9, 0.5]" in error
    assert "checkpoint" not in error


def test_a_warning_is_printed_once_and_the_training_goes_on(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    first, second = outcomes["warn"]
    assert [outcome["steps"] for outcome in (first, second)] == [5, 5]
    assert first["said"].count("warning[AT028]: step ") == 3
    assert "AT028" not in second["said"]


def test_a_difference_may_only_be_written(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    for outcome in outcomes["write"]:
        assert (outcome["steps"], outcome["error"]) == (5, "")
        assert "AT028" not in outcome["said"]
        assert "checks hold" not in outcome["said"]
    assert state_of(outcomes["write"][0]["file"], "AT028") == "differs"


def test_an_error_of_ours_is_a_line_a_rank_and_the_training_goes_on(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    for rank, outcome in enumerate(outcomes["our own error"]):
        assert (outcome["steps"], outcome["error"]) == (21, "")
        lines = [line for line in outcome["said"].splitlines() if line.startswith(f"harness.watch on rank {rank}")]
        assert len(lines) == 1
        assert "the training continues" in lines[0]


def test_a_file_that_cannot_be_written_stops_nothing(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    first = outcomes["no place to write"][0]
    assert (first["steps"], first["said"].count("cannot be written")) == (5, 1)


def test_the_engine_is_as_before_after_a_close(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    for outcome in outcomes["detached"]:
        assert (outcome["steps"], outcome["error"], outcome["notes"]) == (5, "", [])


@pytest.mark.parametrize(
    ("rank", "local_rank", "lines"),
    [
        (0, "0", ["harness.engine_watch.engine_differences.EngineDifferenceError: error[AT006]: it is 0", "help: x"]),
        (1, "1", []),
        (8, "0", ["harness.watch on rank 8: stopped by AT006, as all ranks; rank 0 says what differs"]),
    ],
)
def test_an_error_that_ends_a_program_is_printed_once_and_short(
    rank: int, local_rank: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.engine_watch.engine_differences import EngineDifferenceError, print_error_once

    others: list[type[BaseException]] = []
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: others.append(kind))
    print_error_once(rank)
    error = EngineDifferenceError([Finding("AT006", "error", "it is 0", fix=Fix("x"))])
    sys.excepthook(EngineDifferenceError, error, None)
    assert capsys.readouterr().err.splitlines() == lines
    sys.excepthook(KeyError, KeyError("a"), None)
    assert others == [KeyError]


def test_errors_of_the_caller_have_one_clear_message(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    notes = outcomes["errors"][0]["notes"]
    assert len(notes) == len(outcomes["errors"][1]["notes"])
    kinds, texts = zip(*(note.split(": ", 1) for note in notes), strict=True)
    assert kinds == (
        "TypeError",
        "TypeError",
        "RuntimeError",
        "FileNotFoundError",
        "ValueError",
        "ValueError",
        "ValueError",
    )
    for text, words in zip(
        texts,
        (
            "a `tuple` is no DeepSpeed engine; give the engine, the first value that `deepspeed.initialize`",
            "a `Linear` is no DeepSpeed engine",
            "this engine is watched already",
            "`nowhere.json` cannot be read: no such file or directory",
            "is no JSON: ",
            "holds a list, should be a JSON object",
            "on_difference is 'stop', should be one of ('raise', 'warn', 'write')",
        ),
        strict=True,
    ):
        assert text.startswith("harness.watch: ")
        assert words in text


def test_a_watch_costs_little_and_waits_only_at_its_steps(forked: ForkedRanks, tmp_path: Path) -> None:
    """Counted against an engine that nobody watches. Milliseconds are in `benchmarks/watch_overhead.py`."""
    forked.run(JOBS / "watch_costs.py", str(tmp_path / "out.json"), "16", "4", "203")
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["is_active"], report["witness_steps"]) == (True, [1, 2, 3, 200])
    before = {"199"}  # the sample of step 200 is drawn after it, on the host
    assert set(report["calls"]) - before == {"1", "2", "3", "4", "20", "200"}
    plain, watched = report["calls"].get("199", ({}, {}))
    assert {name for name in watched if watched[name] != plain.get(name, 0)} <= {"__bool__"}
