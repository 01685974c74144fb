# SPDX-License-Identifier: Apache-2.0
"""One flagship recipe rehearsed end to end: the launcher, a killed rank, resume, export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "ds_configs" / "llama-3.1-70b-zero3-cpu-offload.yaml"


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rehearsal")
    command = [sys.executable, "-m", "harness", "rehearse", str(RECIPE), "--format", "json", "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout)


def test_all_phases_ran(rehearsed: dict[str, Any]) -> None:
    assert [(stage["name"], stage["code"]) for stage in rehearsed["stages"]] == [
        ("files", 0),
        ("train", 0),
        ("resume", 0),
        ("export", 0),
    ]
    phases = {q["name"] for q in rehearsed["quantities"]}
    assert {f"host memory, {phase}" for phase in ("load", "step", "save", "resume", "export")} <= phases


def test_the_states_are_as_planned_and_carried_over_they_are_the_whole_runs_plan(rehearsed: dict[str, Any]) -> None:
    states = [q for q in rehearsed["quantities"] if "." in q["name"]]
    assert {q["name"] for q in states} == {
        "gpu.parameters",
        "gpu.persistent",
        "host.gradients",
        "host.master",
        "host.master_gradients",
        "host.states",
    }
    assert all(q["exact"] for q in states), states
    assert all(q["low"] == q["high"] == q["whole"] for q in states), states
    assert rehearsed["states_exact"] is True


def test_it_says_what_it_changed_and_leaves_figures_alone(rehearsed: dict[str, Any]) -> None:
    changed = {change["key"]: (change["was"], change["now"]) for change in rehearsed["changes"]}
    assert changed["model.hidden_size"] == (8192, 256)
    folder = Path(rehearsed["folder"])
    assert not (folder / "model").exists()
    assert not list(folder.glob("runs/*/checkpoints"))
    assert json.loads((folder / "rehearsal.json").read_text()) == rehearsed
