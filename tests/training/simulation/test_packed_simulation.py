# SPDX-License-Identifier: Apache-2.0
"""Packed rows of 65,536 tokens on the simulated device: no tensor of length x length, and no wait for the device in a
layer, but by `sdpa`, whose masks are as large as planned.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.plan.planner import Plan, make_plan
from harness.plan.simulation.request import build_request
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.simulated_ranks import simulate_cases

ROOT = Path(__file__).parents[3]
LENGTH = 65_536
MODEL = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": LENGTH,
}
CASES: dict[str, dict[str, Any]] = {
    "sdpa": {"attention": "sdpa"},
    "sdpa_varlen": {"attention": "sdpa_varlen"},
    "more layers and rows": {"attention": "sdpa_varlen", "layers": 4, "train": {"per_device_train_batch_size": 2}},
    "fp32": {"attention": "sdpa_varlen", "precision": {"bf16": False}, "train": {"gradient_checkpointing": False}},
    "ulysses": {
        "attention": "auto",
        "parallel": {"sequence_parallel_size": 2},
        "zero": {"stage": 3, "reduce_bucket_size": 1_000_000},
    },
}
WITHOUT_MASKS = [name for name in CASES if name != "sdpa"]


def plan_case(attention: str, layers: int = 2, **sections: Any) -> Plan:
    body: dict[str, Any] = {
        "model": {
            "config": {**MODEL, "num_hidden_layers": layers},
            "tokenizer": "bytes",
            "attn_implementation": attention,
        },
        "data": {"train": "builtin:python-docs", "max_length": LENGTH, "packing": True, "eval_fraction": 0.0},
        "precision": {"bf16": True},
        "zero": {"stage": 2},
        "cluster": {"gpu": "H200-141GB"},
        **sections,
    }
    train = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}
    body["train"] = {"max_steps": 2, **train, **body.get("train", {})}
    run = resolve_run(RunSpec.model_validate_json(json.dumps(body)), world_size=4)
    return make_plan(run, ROOT, with_alternatives=False)


@pytest.fixture(scope="module")
def answers(simulated: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    plans = {name: plan_case(**case) for name, case in CASES.items()}
    bodies = {name: build_request(plan, render_ds_config(plan.run).config, ROOT).body for name, plan in plans.items()}
    found = simulate_cases("packed_simulations.py", bodies, tmp_path_factory.mktemp("packed"), simulated)
    return {name: each.get("answer", each.get("error")) for name, each in found.items()}


@pytest.mark.parametrize("name", WITHOUT_MASKS)
def test_no_tensor_is_as_large_as_length_squared(answers: dict[str, Any], name: str) -> None:
    answer = answers[name]
    assert answer["failed"] is None
    assert answer["squares"] == {}
    assert answer["largest"] < LENGTH**2 / 16
    assert set(answer["attention_kernels"]) == {"memory-efficient" if name == "fp32" else "flash by document"}


@pytest.mark.parametrize("name", WITHOUT_MASKS)
def test_no_layer_waits_for_the_device(answers: dict[str, Any], name: str) -> None:
    """DeepSpeed reads norms and overflows, once a step; the forward pass of the model reads nothing."""
    assert not [line for line in answers[name]["syncs"] if "transformers/" in line or "harness/" in line]
    assert answers["more layers and rows"]["syncs"] == answers["sdpa_varlen"]["syncs"]


def test_sdpa_makes_masks_and_waits(answers: dict[str, Any]) -> None:
    """The counters see what they are for."""
    answer = answers["sdpa"]
    assert answer["squares"]["aten::masked_fill_"] == 18, "of each layer: forward, recomputation, evaluation"
    assert answer["largest"] == 2 * LENGTH**2
    assert any("find_packed_sequence_indices" in line for line in answer["syncs"])
    assert set(answer["attention_kernels"]) == {"memory-efficient"}


@pytest.mark.parametrize("name", [name for name in CASES if name != "ulysses"])
def test_the_peak_is_as_planned(answers: dict[str, Any], name: str) -> None:
    """Of forward and backward, with what the planner puts on top for fragmentation."""
    memory = plan_case(**CASES[name]).memory
    assert memory is not None
    rows = [row for row in memory.items_of("gpu") if row.kind not in ("context", "nccl")]
    for phase in ("forward", "backward"):
        planned = sum(row.bytes for row in rows if phase in row.phases)
        counted = answers[name]["peaks"][phase]["cuda"]["bytes"]
        assert 0.7 < counted / planned < 1.2
