# SPDX-License-Identifier: Apache-2.0
"""Checkpointing by segments on the simulated device: the peak of each length of a segment is the planned one, of the rank
that has gradients first. Needs deepspeed; a quarter of a minute.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.plan.memory.memory_estimate import estimate_memory
from harness.plan.planner import Plan, make_plan
from harness.plan.simulation.comparison import planned_tensors
from harness.plan.simulation.request import build_request
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.simulated_ranks import simulate_cases

ROOT = Path(__file__).parents[3]
RANKS, LAYERS, LENGTH = 2, 8, 4096
BOUND = 0.02
CASES = {"1": (1, 1), "2": (2, 1), "4, rank 0": (4, 0), "8": (8, 1)}
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
        less = {"steps": 1, "with_evaluation": False, "with_checkpoint": False, "rates": None}
        bodies[name] = {**request.body, **less}
    found = simulate_cases("packed_simulations.py", bodies, tmp_path_factory.mktemp("segments"), simulated)
    return {name: each.get("answer", each.get("error")) for name, each in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_as_planned(answers: dict[str, Any], name: str) -> None:
    layers, rank = CASES[name]
    plan, answer = plan_segments(layers), answers[name]
    assert answer["squares"] == {}, "a row that is not packed has no mask"
    simulated = answer["peaks"]["backward"]["cuda"]["bytes"]
    assert plan.model is not None
    assert plan.settings is not None
    assert plan.memory is not None
    of_rank = estimate_memory(plan.model, replace(plan.settings, rank=rank), plan.device)
    memories = [of_rank, plan.memory] if rank == RANKS - 1 else [of_rank]  # what a user is told is the last rank's
    for memory in memories:
        states = sum(item.bytes for item in memory.items_of("gpu") if item.kind == "states")
        planned = planned_tensors(memory, "gpu", "backward") - states  # the first step has none yet
        assert abs(simulated / planned - 1) < BOUND, (planned, simulated)
