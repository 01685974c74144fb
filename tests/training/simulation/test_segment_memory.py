# SPDX-License-Identifier: Apache-2.0
"""Checkpointing by segments on the simulated device: the peak of each length of a segment is the planned one, of the rank
that has gradients first. Needs deepspeed; half a minute.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.plan.planner import Plan, make_plan
from harness.plan.simulation.comparison import compare_rank, planned_tensors
from harness.plan.simulation.request import build_request
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.simulated_ranks import simulate_cases

ROOT = Path(__file__).parents[3]
RANKS, LAYERS, LENGTH = 2, 8, 4096
BOUND = 0.02
CASES = {"1": (1, 1), "2": (2, 1), "4": (4, 1), "8": (8, 1), "4, rank 0": (4, 0)}
"""Layers of a segment, and the simulated rank."""


def plan_segments(layers: int) -> Plan:
    model = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": LENGTH}
    train: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    body: dict[str, Any] = {
        "model": {"config": {**model, **heads}, "tokenizer": "bytes"},
        "data": {"train": "builtin:python-docs", "max_length": LENGTH, "eval_fraction": 0.0},
        "train": {**train, "gradient_checkpointing": {"layers_per_segment": layers} if layers > 1 else True},
        "precision": {"bf16": False},
        "zero": {"stage": 2, "reduce_bucket_size": 1_000_000},
        "cluster": {"gpu": "H100-80GB"},
    }
    run = resolve_run(RunSpec.model_validate_json(json.dumps(body)), world_size=RANKS)
    return make_plan(run, ROOT, with_alternatives=False)


@pytest.fixture(scope="module")
def answers(simulated: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    bodies = {}
    for name, (layers, rank) in CASES.items():
        plan = plan_segments(layers)
        request = build_request(plan, render_ds_config(plan.run).config, ROOT, rank=rank)
        bodies[name] = {**request.body, "with_evaluation": False}
    found = simulate_cases("packed_simulations.py", bodies, tmp_path_factory.mktemp("segments"), simulated)
    return {name: each.get("answer", each.get("error")) for name, each in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_as_planned(answers: dict[str, Any], name: str) -> None:
    layers, rank = CASES[name]
    plan, answer = plan_segments(layers), answers[name]
    assert answer["squares"] == {}, "a row that is not packed has no mask"
    rows = [row for row in compare_rank(plan, rank, answer).phases if row.tier == "gpu" and row.planned]
    simulated = max(row.simulated for row in rows)
    planned = [max(row.planned or 0 for row in rows)]
    if rank == RANKS - 1:  # what a user is told is the plan of this rank
        assert plan.memory is not None
        planned.append(planned_tensors(plan.memory, "gpu", "backward"))
    assert all(abs(simulated / each - 1) < BOUND for each in planned), (planned, simulated)
