# SPDX-License-Identifier: Apache-2.0
"""Moving over from Hugging Face's Trainer: the same model, batches and rendered JSON give it the same losses.

Needs the training extra; half a minute on forked ranks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.synthetic_files import write_model
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import TINY

JOB = Path(__file__).parents[1] / "jobs" / "trainer_equal.py"
STEPS = 12
CASES: dict[str, dict[str, Any]] = {
    "zero-2": {"zero": {"stage": 2}},
    "zero-3": {"zero": {"stage": 3}},
    "zero-3-packed": {"zero": {"stage": 3}, "data": {"packing": True}},
    "zero-3-offload": {"zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
    "zero-2-bf16": {"zero": {"stage": 2}, "precision": {"bf16": True}},
    "zero-3-bf16": {"zero": {"stage": 3}, "precision": {"bf16": True}},
    "zero-2-decay": {"zero": {"stage": 2}, "decay": 0.1},
}
BOUND = {False: 1e-6, True: 2e-3}
"""Largest relative difference of a loss: in fp32 rounding alone, in bf16 what other orders of additions make of it."""


@pytest.fixture(scope="module")
def losses(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[float]]]:
    folder = tmp_path_factory.mktemp("trainer-equal")
    write_model(folder / "model", {**TINY, "attention_dropout": 0.0}, torch.float32)
    jobs = []
    for name, case in CASES.items():
        body = {
            "name": "equal",
            "model": {"name_or_path": str(folder / "model")},
            "data": {"train": "builtin:python-docs", "max_length": 64, "eval_fraction": 0.0, **case.get("data", {})},
            "train": {"max_steps": STEPS, "per_device_train_batch_size": 2, "seed": 3},
            "optimizer": {"learning_rate": 3e-3, "weight_decay": case.get("decay", 0.0)},
            "scheduler": {"type": "cosine", "warmup_steps": 3},
            "precision": case.get("precision", {"bf16": False}),
            "zero": case["zero"],
            "checkpoint": {"save_at_end": False},
        }
        run = with_tuned_defaults(resolve_run(RunSpec.model_validate_json(json.dumps(body)), world_size=2), folder)
        place = folder / name
        for part in ("logs", "status", "checkpoints"):
            (place / part).mkdir(parents=True)
        (place / "spec.resolved.json").write_text(json.dumps(run.to_json()))
        (place / "ds_config.json").write_text(render_ds_config(run).json_text)
        jobs.append({"run": str(place)})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOB, str(folder / "jobs.json"), timeout=600)
    return {name: json.loads((folder / name / "losses.json").read_text()) for name in CASES}


@pytest.mark.parametrize("name", [name for name in CASES if "decay" not in name])
def test_trainer_has_the_same_losses(losses: dict[str, dict[str, list[float]]], name: str) -> None:
    ours, theirs = losses[name]["harness"], losses[name]["trainer"]
    assert len(ours) == len(theirs) == STEPS
    assert theirs == pytest.approx(ours, rel=BOUND["bf16" in name])
    assert ours[-1] < 0.9 * ours[0]  # it learns


def test_trainer_lets_norms_decay_too(losses: dict[str, dict[str, list[float]]]) -> None:
    """With the optimizer in the JSON it hands all parameters over in one group: the one known difference.

    We leave norms and biases out, as Trainer itself does with an optimizer of its own.
    """
    ours, theirs = losses["zero-2-decay"]["harness"], losses["zero-2-decay"]["trainer"]
    assert theirs[:2] == pytest.approx(ours[:2], rel=1e-6)  # the first step has a rate of 0
    assert 1e-6 < max(abs(a - b) / a for a, b in zip(ours, theirs, strict=True)) < 1e-3
