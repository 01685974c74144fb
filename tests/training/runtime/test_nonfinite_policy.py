# SPDX-License-Identifier: Apache-2.0
"""A step with a NaN or an infinity changes no weight at any stage, is told with its rank and rows, and ends the run when
it should; so does an evaluation that gets no better. Two forked ranks, all cases in one job: about 30 s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_cases import write_run, write_text
from tests.support.training.runtime_helpers import metric_lines

JOB = Path(__file__).parents[1] / "jobs" / "policy_cases.py"
STEPS = 5
# DeepSpeed's check is off: a step is taken though its loss is not finite.
TAKEN: dict[str, Any] = {
    "stage": 1,
    "precision": "bf16",
    "kind": "loss",
    "bad": [3],
    "deepspeed": {"bf16": {"enabled": True, "check_grad_overflow": False}},
}
SAVING: dict[str, Any] = {"save_steps": 2, "async_save": True, "slow_save": 1.0}

CASES: dict[str, dict[str, Any]] = {
    # stage 0 in fp32 and autocast has no check of DeepSpeed's own
    **{
        f"zero{stage}-{precision}-{kind}": {"stage": stage, "precision": precision, "kind": kind, "bad": [3]}
        for stage, precision, kind in (
            (0, "fp32", "loss"),
            (0, "fp32", "gradient"),
            (0, "bf16", "loss"),
            (1, "fp32", "gradient"),
            (2, "bf16", "gradient"),
            (3, "fp32", "loss"),
            (3, "bf16", "gradient"),
        )
    },
    "zero2-cpu": {"stage": 2, "precision": "fp32", "kind": "loss", "bad": [3], "offload": True},
    "stop": {
        "stage": 1,
        "precision": "fp32",
        "kind": "loss",
        "bad": [3],
        "train": {"on_nonfinite": "stop"},
        "save_at_end": True,
    },
    "stop-gradient": {
        "stage": 0,
        "precision": "fp32",
        "kind": "gradient",
        "bad": [2],
        "train": {"on_nonfinite": "stop"},
    },
    "in-a-row": {
        "stage": 2,
        "precision": "bf16",
        "kind": "loss",
        "bad": [1, 3, 4],
        "train": {"max_consecutive_skipped_steps": 2},
    },
    "in-all": {"stage": 0, "precision": "fp32", "kind": "loss", "bad": [1, 4], "train": {"max_skipped_steps": 2}},
    **{
        f"taken-{name}": {**TAKEN, "late": late, "save_steps": save_steps, "save_at_end": True}
        for name, late, save_steps in (
            ("at-once", False, 1),
            ("late", True, 5),
            ("before-a-save", True, 1),
            ("before-the-first-save", True, 3),
        )
    },
    # Steps that are not logged: of five, the last one.
    **{
        f"unlogged-{name}": {**TAKEN, "logging_steps": 5, **settings}
        for name, settings in {
            "before-a-save": {"save_steps": 1},
            "before-a-save-late": {"save_steps": 1, "late": True},
            "before-an-evaluation": {"eval_steps": 3},
            "before-a-stop": {"save_at_end": True, "stop": 3},
            "before-a-stop-late": {"save_at_end": True, "stop": 3, "late": True},
            "gradient": {"save_steps": 1, "kind": "gradient"},
            "gradient-at-the-end": {"save_at_end": True, "kind": "gradient", "bad": [STEPS]},
            "skipped": {"save_steps": 1, "deepspeed": {}},
        }.items()
    },
    # A thread still writes the checkpoint of step 2 when step 3 ends the run.
    "saving-stop": {**TAKEN, **SAVING, "deepspeed": {}, "train": {"on_nonfinite": "stop"}},
    "saving-taken": {**TAKEN, **SAVING},
    "no-patience": {"stage": 1, "precision": "fp32", "kind": "loss", "bad": [], "patience": 2},
}


@pytest.fixture(scope="module")
def outcomes(
    forked: ForkedRanks, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Each case's run directory and outcome."""
    folder = tmp_path_factory.mktemp("policies")
    text = write_text(folder / "text.txt")
    jobs = []
    for name, case in CASES.items():
        write_run(folder / name, _spec(name, case, tiny_model, text), 2)
        jobs.append({"run": str(folder / name), "bad": case["bad"], "rank": 1, "kind": case["kind"]})
        jobs[-1] |= {"late": case.get("late", False), "stop": case.get("stop"), "slow_save": case.get("slow_save", 0.0)}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOB, str(folder / "jobs.json"), ranks=2)
    return {name: (folder / name, json.loads((folder / name / "outcome.json").read_text())) for name in CASES}


def _spec(name: str, case: dict[str, Any], model: Path, text: Path) -> dict[str, Any]:
    patience = case.get("patience")
    evaluates = patience is not None or "eval_steps" in case
    return {
        "name": name,
        "model": {"name_or_path": str(model)},
        "data": {"train": str(text), "max_length": 32, "eval_fraction": 0.2 if evaluates else 0.0},
        "train": {
            "max_steps": STEPS,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            **case.get("train", {}),
        },
        # A rate at which no loss can fall: every evaluation after the first is no better.
        "optimizer": {"learning_rate": 1e-30 if patience else 1e-2},
        "scheduler": {"type": "constant"},
        "precision": {"bf16": case["precision"] == "bf16"},
        "zero": {
            "stage": case["stage"],
            **({"offload_optimizer": {"device": "cpu", "pin_memory": False}} if case.get("offload") else {}),
        },
        "logging": {"logging_steps": case.get("logging_steps", 1)},
        "checkpoint": {
            "save_at_end": case.get("save_at_end", False),
            "save_steps": case.get("save_steps"),
            "async_save": case.get("async_save", False),
        },
        "deepspeed": case.get("deepspeed", {}),
        "eval": {"eval_steps": case.get("eval_steps", 1), "early_stopping_patience": patience} if evaluates else {},
    }


def steps_of(run: Path, kind: str) -> list[int]:
    return [line["step"] for line in metric_lines(run, kind)]


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if n.startswith("zero")])
def test_a_bad_step_changes_no_weight_and_the_run_goes_on(name: str, outcomes: dict[str, Any]) -> None:
    run, outcome = outcomes[name]
    assert outcome["refused"] is None
    assert outcome["changed"] == [True, True, False, True, True]
    assert (outcome["step"], outcome["skipped"]) == (STEPS, 1)
    told = metric_lines(run, "skip")
    assert [line["step"] for line in told] == [3]
    assert told[0].get("ranks") == ([1] if CASES[name]["kind"] == "loss" else None)


def test_stop_names_the_step_the_rank_and_its_rows(outcomes: dict[str, Any]) -> None:
    run, outcome = outcomes["stop"]
    gate, message, notes = outcome["refused"]
    assert (gate, message) == ("OP111", "step 3 has a NaN or an infinity in the loss of rank 1")
    # global batches of 8: micro-batch m of rank r is the r-th pair of its m-th half
    assert notes[0] == "its global batch is sequences 16 to 23 in the order of epoch 0, drawn with `train.seed: 42`"
    assert notes[1] == "rank 1 had sequences 18 to 19, 22 to 23"
    assert outcome["changed"] == [True, True, False]
    assert outcome["saved"] == steps_of(run, "save") == [3]


def test_stop_for_a_gradient_alone(outcomes: dict[str, Any]) -> None:
    gate, message, _ = outcomes["stop-gradient"][1]["refused"]
    assert gate == "OP111"
    assert message == "step 2 has a NaN or an infinity in the gradient, though every loss is finite"


def test_so_many_in_a_row_end_the_run(outcomes: dict[str, Any]) -> None:
    gate, message, _ = outcomes["in-a-row"][1]["refused"]
    assert gate == "OP112"
    assert message.endswith("the 2. skipped in a row, `train.max_consecutive_skipped_steps` is 2")
    assert outcomes["in-a-row"][1]["changed"] == [False, True, False, False]


def test_so_many_in_all_end_the_run(outcomes: dict[str, Any]) -> None:
    gate, message, _ = outcomes["in-all"][1]["refused"]
    assert (gate, "the 2. skipped in all" in message) == ("OP112", True)


@pytest.mark.parametrize(
    ("name", "steps_taken", "saved"),
    [("at-once", 3, [1, 2]), ("late", 4, []), ("before-a-save", 3, [1, 2]), ("before-the-first-save", 3, [])],
)
def test_a_step_that_was_taken_with_such_a_loss_ends_the_run(
    name: str, steps_taken: int, saved: list[int], outcomes: dict[str, Any]
) -> None:
    """On a device the loss is read a step late, but before a save. The lines of the steps before are written, nothing of
    that step is written or saved.
    """
    run, outcome = outcomes[f"taken-{name}"]
    gate, message, notes = outcome["refused"]
    assert (gate, message) == ("OP113", "the loss of step 3 is nan, and the step was taken")
    assert len(outcome["changed"]) == steps_taken
    assert steps_of(run, "step") == [1, 2]
    assert outcome["saved"] == saved
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("before-a-save", [1, 2]),
        ("before-a-save-late", [1, 2]),
        ("before-an-evaluation", []),
        ("before-a-stop", []),
        ("before-a-stop-late", []),
    ],
)
def test_a_loss_that_is_not_logged_is_read_before_a_save(name: str, saved: list[int], outcomes: dict[str, Any]) -> None:
    """And before an evaluation and a stop; it has no line for that."""
    run, outcome = outcomes[f"unlogged-{name}"]
    gate, message, notes = outcome["refused"]
    assert (gate, message) == ("OP113", "the loss of step 3 is nan, and the step was taken")
    assert "the loss is read every 5 steps" in notes[-1]
    assert outcome["saved"] == saved
    assert [steps_of(run, kind) for kind in ("step", "save", "eval", "stop")] == [[], saved, [], []]


@pytest.mark.parametrize("name", ["gradient", "gradient-at-the-end"])
def test_weights_that_an_infinite_gradient_made_nan_are_not_saved(name: str, outcomes: dict[str, Any]) -> None:
    """The loss of that step is finite: it is of the weights before."""
    outcome = outcomes[f"unlogged-{name}"][1]
    gate, message, _ = outcome["refused"]
    step = 3 if name == "gradient" else STEPS
    assert (gate, message) == ("OP113", f"the gradient norm of step {step} is not finite, and the step was taken")
    assert outcome["saved"] == ([1, 2] if name == "gradient" else [])


def test_a_step_that_was_skipped_is_saved(outcomes: dict[str, Any]) -> None:
    run, outcome = outcomes["unlogged-skipped"]
    assert (outcome["refused"], outcome["saved"]) == (None, [1, 2, 3, 4, 5])
    assert [steps_of(run, kind) for kind in ("step", "skip")] == [[5], [3]]


@pytest.mark.parametrize(("name", "gate"), [("saving-stop", "OP111"), ("saving-taken", "OP113")])
def test_the_end_waits_for_a_save_in_the_background(name: str, gate: str, outcomes: dict[str, Any]) -> None:
    run, outcome = outcomes[name]
    assert outcome["refused"][0] == gate
    assert outcome["saved"] == steps_of(run, "save") == [2]


def test_patience_ends_the_run(outcomes: dict[str, Any]) -> None:
    run, outcome = outcomes["no-patience"]
    assert (outcome["step"], outcome["refused"]) == (3, None)
    assert "2 evaluations in a row no better than the best" in metric_lines(run, "stop")[0]["reason"]
    assert [line["step"] for line in metric_lines(run, "eval")] == [1, 2, 3]
