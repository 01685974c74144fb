"""A step with a NaN or an infinity changes no weight at any stage, is told with its rank and rows, and ends the run when
it should; so does an evaluation that gets no better. Two forked ranks, all cases in one job: about 20 s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import ForkedRanks
from parity_cases import write_run, write_text
from runtime_helpers import metric_lines

JOB = Path(__file__).parent / "jobs" / "policy_cases.py"
STEPS = 5

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
    "stop": {"stage": 1, "precision": "fp32", "kind": "loss", "bad": [3], "train": {"on_nonfinite": "stop"}},
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
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOB, str(folder / "jobs.json"), ranks=2)
    return {name: (folder / name, json.loads((folder / name / "outcome.json").read_text())) for name in CASES}


def _spec(name: str, case: dict[str, Any], model: Path, text: Path) -> dict[str, Any]:
    patience = case.get("patience")
    return {
        "name": name,
        "model": {"name_or_path": str(model)},
        "data": {"train": str(text), "max_length": 32, "eval_fraction": 0.2 if patience else 0.0},
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
        "checkpoint": {"save_at_end": name == "stop"},
        "eval": {"eval_steps": 1, "early_stopping_patience": patience} if patience else {},
    }


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["bad"] == [3] and "train" not in c])
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
    assert [path.name for path in (run / "checkpoints").glob("step-*")] == ["step-00000003"]


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


def test_patience_ends_the_run(outcomes: dict[str, Any]) -> None:
    run, outcome = outcomes["no-patience"]
    assert (outcome["step"], outcome["refused"]) == (3, None)
    assert "2 evaluations in a row no better than the best" in metric_lines(run, "stop")[0]["reason"]
    assert [line["step"] for line in metric_lines(run, "eval")] == [1, 2, 3]
