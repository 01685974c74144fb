# SPDX-License-Identifier: Apache-2.0
"""This version continues and exports the checkpoints of earlier ones. Needs the training extra; 40 CPU seconds a version.

A run that is resumed at the frozen checkpoint of step 3 is compared with the frozen run itself, which went on to its early
stop at step 6. With the same ranks and processor the losses are the same to the bit, which `tests/kill` holds within a
version; on another processor torch takes other instructions. So they are compared to `TOLERANCE`. By hand: with torch's
and oneDNN's code for older processors a loss differs by 4e-6 of itself at most; with the moments of Adam set to zero, by
1.6e-2 (zero2) and 2.0e-2 (zero3-offload); from the start of the data instead of its position, by 3.8e-3 and 2.4e-3.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.latest import find_complete
from tests.frozen.frozen_files import FROZEN, frozen_runs, frozen_versions

pytestmark = pytest.mark.training
STEPS = (4, 5, 6)
TOLERANCE = 5e-4
"""Relative, of a loss."""
RANKS = {"zero2": 2, "zero3-offload": 1}
"""The frozen runs have two ranks: one checkpoint is resumed as it is, the other is resharded for one rank."""
CASES = [
    pytest.param(version, name, marks=() if name == "zero3-offload" else pytest.mark.nightly)
    for version in frozen_versions()
    for name in frozen_runs(version)
]
"""By day the one that is resharded; what it continues from, the exports read of both."""


def call(folder: Path, *words: object) -> str:
    """The screen of a Python program that must succeed."""
    environment = os.environ | {"DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-P", *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rows(run_dir: Path, kind: str) -> dict[int, dict[str, Any]]:
    """The rows of metrics.jsonl of this type by their step."""
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row for row in lines if row["type"] == kind}


def copy_version(version: str, folder: Path) -> dict[str, Path]:
    """Copy a frozen version into a folder; the name of each spec -> its run directory in the copy."""
    shutil.copytree(FROZEN / version, folder, dirs_exist_ok=True)
    return {name: folder / run.relative_to(FROZEN / version) for name, run in frozen_runs(version).items()}


@pytest.mark.parametrize(("version", "name"), CASES)
def test_resume_continues_with_the_same_losses_to_the_same_end(version: str, name: str, tmp_path: Path) -> None:
    frozen = copy_version(version, tmp_path)[name]
    settings = ("launch.output_dir=resumed", "launch.env.OMP_NUM_THREADS=1")  # more threads would wait for each other
    options = ("--num-gpus", RANKS[name], *(word for setting in settings for word in ("--set", setting)))
    screen = call(tmp_path, "-m", "harness", "launch", f"{name}.yaml", "--resume", frozen, *options)
    resumed = (tmp_path / "resumed" / "latest").resolve()
    for kind in ("step", "eval"):
        then, now = rows(frozen, kind), rows(resumed, kind)
        assert tuple(now) == STEPS, screen
        assert {step: now[step]["loss"] for step in STEPS} == {
            step: pytest.approx(then[step]["loss"], rel=TOLERANCE) for step in STEPS
        }
    for run in (frozen, resumed):  # by the patience that the checkpoint has counted, for a loss better by less than 10
        assert rows(run, "stop")[6]["reason"].startswith("5 evaluations in a row no better than ")
    assert rows(resumed, "end")[6]["state"] == "completed"
    learning_rates = [[rows(run, "step")[step]["learning_rate"] for step in STEPS] for run in (frozen, resumed)]
    assert learning_rates[0] == learning_rates[1]


@pytest.mark.parametrize("version", frozen_versions())
def test_export_loads_with_transformers(version: str, tmp_path: Path) -> None:
    """`--verify` loads the folder with transformers and compares its logits with those of the checkpoint."""
    runs = copy_version(version, tmp_path)
    outs = {name: tmp_path / f"exported-{name}" for name in runs}
    pairs = [(find_complete(runs[name]), outs[name]) for name in runs]
    screen = call(tmp_path, FROZEN / "export_all.py", *(word for pair in pairs for word in pair))
    assert screen.count("the same logits as the checkpoint's") == len(runs)
    for out in outs.values():
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in out.iterdir()}
