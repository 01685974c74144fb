# SPDX-License-Identifier: Apache-2.0
"""Patience counts evaluations that are no better by more than the threshold; a resume counts each of them once.

Two forked ranks, all runs in two jobs: about 20 s.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.checkpoint_list import find_best_checkpoint, read_rows
from harness.checkpoints.evaluations import EVALUATIONS, Evaluations
from harness.checkpoints.manifest import read_manifest, write_manifest
from harness.run_records.run_record import read_run_record
from harness.run_records.summary import summarise_run
from harness.runtime.early_stopping import count_evaluation, early_stop_reason
from harness.runtime.train_state import TrainState
from harness.spec.sections.training_spec import EvalSpec
from harness.views.checkpoint import render_checkpoints
from harness.views.style import Style
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_cases import write_run, write_text
from tests.support.training.runtime_helpers import metric_lines

JOB = Path(__file__).parents[1] / "jobs" / "train_many.py"
STEPS = 12
RESUMED = {
    "before-the-evaluation": 2,
    "after-the-evaluation": 4,
    "older-version": 4,
    "from-an-earlier-step": 4,
    "broken-file": 0,
    "in-the-manifest": 0,
}
"""The step of the last evaluation that is recorded where a run resumes from step 4."""


def test_better_means_lower_by_more_than_the_threshold() -> None:
    spec = EvalSpec(early_stopping_patience=2, early_stopping_threshold=0.1)
    state = count_evaluation(spec, TrainState(step=10), 2.0)
    assert (state.best_loss, state.best_step, state.last_eval_step) == (2.0, 10, 10)
    state = count_evaluation(spec, replace(state, step=20), 1.95)
    assert (state.patience_loss, state.evaluations_without_gain, state.last_eval_step) == (2.0, 1, 20)
    assert (state.best_loss, state.best_step) == (1.95, 20)  # the best checkpoint is that of the lowest loss
    better = count_evaluation(spec, state, 1.5)
    assert (better.best_loss, better.patience_loss, better.evaluations_without_gain) == (1.5, 1.5, 0)
    assert early_stop_reason(spec, state) is None
    state = count_evaluation(spec, state, float("nan"))
    why = "2 evaluations in a row no better than 2.0000 by more than 0.1; the best: 1.9500 of step 20"
    assert early_stop_reason(spec, state) == why


def test_without_patience_nothing_ends() -> None:
    state = TrainState()
    for loss in (1.0, 2.0, 3.0):
        state = count_evaluation(EvalSpec(), state, loss)
        assert early_stop_reason(EvalSpec(), state) is None
    assert (state.best_loss, state.evaluations_without_gain) == (1.0, 2)


@pytest.fixture(scope="module")
def runs(forked: ForkedRanks, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`undisturbed`: evaluations after steps 2, 4 and 6, none better than the first, and a checkpoint before each. The
    others resume from step 4, after a kill at another moment or in another version.
    """
    folder = tmp_path_factory.mktemp("patience")
    body = {
        "name": "patience",
        "model": {"name_or_path": str(tiny_model)},
        "data": {"train": str(write_text(folder / "text.txt")), "max_length": 32, "eval_fraction": 0.2},
        "train": {"max_steps": STEPS, "per_device_train_batch_size": 2},
        "optimizer": {"learning_rate": 1e-30},
        "scheduler": {"type": "constant"},
        "zero": {"stage": 2},
        "checkpoint": {"save_steps": 2},
        "eval": {"eval_steps": 2, "early_stopping_patience": 2},
    }

    def run_all(name: str, resumed: dict[str, Path | None]) -> dict[str, Path]:
        jobs = [{"run": str(folder / n), "resume": None if r is None else str(r)} for n, r in resumed.items()]
        (folder / name).write_text(json.dumps(jobs))
        forked.run(JOB, str(folder / name), ranks=2)
        return {n: folder / n for n in resumed}

    undisturbed = write_run(folder / "undisturbed", body, 2)
    run_all("first.json", {"undisturbed": None})
    resumed: dict[str, Path | None] = {}
    for name, evaluated in RESUMED.items():
        limit = {"save_total_limit": 1} if name == "from-an-earlier-step" else {}
        checkpoints = write_run(folder / name, {**body, "checkpoint": {"save_steps": 2, **limit}}, 2) / "checkpoints"
        resumed[name] = checkpoints / "step-00000004"
        shutil.copytree(undisturbed / "checkpoints" / "step-00000004", checkpoints / "step-00000004")
        Evaluations.read(undisturbed / "checkpoints").up_to(evaluated).write(checkpoints)
        if name != "in-the-manifest":
            forget_own_evaluation(checkpoints / "step-00000004", undisturbed / "checkpoints" / "step-00000002")
        if name == "from-an-earlier-step":
            later = Evaluations.read(checkpoints).with_evaluation(6, {"loss": 0.5}).with_evaluation(8, {"loss": 0.4})
            later.write(checkpoints)
        elif name == "broken-file":
            (checkpoints / EVALUATIONS).write_text('{"4": {"loss"')
    older = folder / "older-version" / "checkpoints" / "step-00000004"
    body_of_older = dict(read_manifest(older).body)
    state = dict(body_of_older["state"])
    assert (state.pop("last_eval_step"), state["evaluations_without_gain"]) == (2, 0)
    write_manifest(older, {**body_of_older, "state": {**state, "evaluations_without_gain": 1}})
    return {"undisturbed": undisturbed, **run_all("resumed.json", resumed)}


def forget_own_evaluation(checkpoint: Path, earlier: Path) -> None:
    """As a kill between the save and the evaluation leaves the manifest: with what the one before counts."""
    body, counted = dict(read_manifest(checkpoint).body), read_manifest(earlier)["state"]
    names = ("best_loss", "best_step", "patience_loss", "evaluations_without_gain", "last_eval_step")
    state = {**body["state"], **{name: counted[name] for name in names}}
    write_manifest(checkpoint, {**body, "state": state})


def test_manifest_list_report_and_resume_name_the_same_best_checkpoint(runs: dict[str, Path]) -> None:
    run = runs["undisturbed"]
    evaluations, manifest = Evaluations.read(run / "checkpoints"), read_manifest(run / "checkpoints" / "step-00000006")
    best = evaluations.best_step([2, 4, 6])
    assert manifest["state"]["best_step"] == manifest["evaluation"]["best"]["step"] == best
    assert manifest["evaluation"]["data"]["fraction"] == 0.2
    assert manifest["evaluation"]["data"]["tokens"] > 0
    assert (manifest["evaluation"]["metric"], manifest["evaluation"]["better"]) == ("loss", "lower")
    table = render_checkpoints(run, read_rows(run / "checkpoints"), evaluations, Style())
    marked = [line.split()[0] for line in table.splitlines() if "(best)" in line]
    summary = summarise_run(read_run_record(run))
    assert marked == [f"step-{best:08d}"] == [find_best_checkpoint(run).path.name]
    assert summary.best_eval[0] == best
    for step in (2, 4):
        assert read_manifest(run / "checkpoints" / f"step-{step:08d}")["state"]["last_eval_step"] == step


def test_the_limit_also_counts_the_checkpoint_that_the_run_resumed_from(runs: dict[str, Path]) -> None:
    kept = {name: sorted(p.name for p in (runs[name] / "checkpoints").glob("step-*")) for name in runs}
    assert kept["from-an-earlier-step"] == ["step-00000006"]
    assert kept["after-the-evaluation"] == ["step-00000004", "step-00000006"]


def values(run: Path, kind: str, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(line.get(key) for key in keys) for line in metric_lines(run, kind)]


def test_a_checkpoint_is_saved_before_the_evaluation_of_its_step(runs: dict[str, Path]) -> None:
    rows = [json.loads(line) for line in (runs["undisturbed"] / "metrics.jsonl").read_text().splitlines()]
    order = [(row["type"], row["step"]) for row in rows if row["type"] in ("save", "eval", "stop")]
    assert order == [("save", 2), ("eval", 2), ("save", 4), ("eval", 4), ("save", 6), ("eval", 6), ("stop", 6)]


@pytest.mark.parametrize(
    ("name", "first_evaluation"),
    [
        ("before-the-evaluation", 4),
        ("after-the-evaluation", 6),
        ("older-version", 6),
        ("from-an-earlier-step", 6),
        ("broken-file", 4),
        ("in-the-manifest", 6),
    ],
)
def test_a_resume_ends_where_the_undisturbed_run_ends(name: str, first_evaluation: int, runs: dict[str, Path]) -> None:
    """An evaluation that a kill prevented is run first; one that was recorded, or is in the state, is not run again."""
    resumed, undisturbed = runs[name], runs["undisturbed"]
    for kind, keys in (
        ("step", ("step", "loss", "grad_norm")),
        ("eval", ("step", "loss")),
        ("stop", ("step", "reason")),
    ):
        expected = [
            row for row in values(undisturbed, kind, *keys) if row[0] >= (5 if kind == "step" else first_evaluation)
        ]
        assert values(resumed, kind, *keys) == expected
    manifests = [read_manifest(run / "checkpoints" / "step-00000006") for run in (undisturbed, resumed)]
    states = [manifest["state"] for manifest in manifests]
    assert states[0] == states[1]
    assert (states[0]["last_eval_step"], states[0]["best_step"]) == (6, 2)
    assert manifests[0]["evaluation"]["own"]["step"] == 6
    if name not in ("broken-file", "in-the-manifest"):  # their folder knows no evaluation before the resume
        assert manifests[0]["evaluation"] == manifests[1]["evaluation"]  # without what was recorded of later steps
    assert max(Evaluations.read(resumed / "checkpoints").by_step) == 6
    assert (undisturbed / "weights.safetensors").read_bytes() == (resumed / "weights.safetensors").read_bytes()
