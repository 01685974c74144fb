# SPDX-License-Identifier: Apache-2.0
"""Differences that a training went on in spite of: `explain --log` reads them next to its log. Needs nothing; seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.diagnosis.run_diagnosis import diagnose_run

DIFFERENCE = {
    "gate": "AT028",
    "message": "step 1: the optimizer was stepped with another gradient than the backward passes computed",
    "fix": {"title": "upgrade to DeepSpeed 0.18.3"},
}
TRAINED = "step 1 loss 2.1\nstep 2 loss 2.0\n"
FAILED = "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nKeyError: 'eval_loss'\n"


def write_folder(folder: Path, log: str, *differences: object) -> Path:
    (folder / "job.log").write_text(log)
    (folder / "engine_checks.json").write_text(json.dumps({"format_version": 1, "differences": differences}))
    return folder


@pytest.mark.parametrize("name", [".", "job.log", "engine_checks.json"])
def test_a_difference_is_the_cause_where_the_log_shows_no_failure(name: str, tmp_path: Path) -> None:
    diagnosis = diagnose_run(write_folder(tmp_path, TRAINED, DIFFERENCE, DIFFERENCE) / name)
    assert (diagnosis.state, diagnosis.cause, diagnosis.confidence) == ("failed", "AT028", "certain")
    assert (diagnosis.title, diagnosis.change) == (DIFFERENCE["message"], "upgrade to DeepSpeed 0.18.3")
    assert diagnosis.notes == ("`engine_checks.json` has this; the log shows no failure",)


def test_it_is_a_note_beside_another_failure(tmp_path: Path) -> None:
    diagnosis = diagnose_run(write_folder(tmp_path, FAILED, DIFFERENCE))
    assert diagnosis.cause != "AT028"
    assert f"`engine_checks.json` has AT028: {DIFFERENCE['message']}" in diagnosis.notes


@pytest.mark.parametrize(
    "row", [1, {}, {"gate": "AT028"}, {"gate": "LG001", "message": "x"}, {"gate": [], "message": "x"}]
)
def test_what_no_watch_writes_is_passed_over(row: object, tmp_path: Path) -> None:
    assert diagnose_run(write_folder(tmp_path, TRAINED, row)).state == "no failure seen"
