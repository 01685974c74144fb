# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own allocator locks the bytes that the plan counts, and trains the same. Needs deepspeed; two processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.plan.memory.memory_items import MemoryItem
from harness.plan.memory.model_states import model_state_items
from harness.plan.memory.zero_partitions import partition_model
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.plan_grid import MODELS, Case

JOB = Path(__file__).parents[1] / "jobs" / "lock_buffers.py"
PINNED = {"offload_optimizer": {"device": "cpu", "pin_memory": True}}
CASES = [
    Case(1, bf16=True, optimizer_at="cpu", zero=PINNED),
    Case(2, bf16=True, optimizer_at="cpu", zero=PINNED),
    Case(3, bf16=True, optimizer_at="cpu", zero=PINNED),
    Case(
        3,
        bf16=True,
        optimizer_at="cpu",
        parameters_at="cpu",
        zero={**PINNED, "offload_param": {"device": "cpu", "pin_memory": True}},
    ),
    Case(
        3,
        bf16=True,
        optimizer_at="cpu",
        parameters_at="nvme",
        zero={**PINNED, "offload_param": {"device": "nvme", "nvme_path": ".", "pin_memory": True, "max_in_cpu": 0}},
    ),
]


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """By rank, and there by case."""
    folder = tmp_path_factory.mktemp("locked")
    work = [[MODELS[case.model], case.config()] for case in CASES]
    (folder / "cases.json").write_text(json.dumps(work), encoding="utf-8")
    forked.run(JOB, str(folder / "cases.json"), str(folder), timeout=240)
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def native_rows(case: Case) -> list[MemoryItem]:
    """The plan's rows with DeepSpeed's own allocator."""
    settings = replace(case.settings(), pins_natively=True)
    return list(model_state_items(settings, partition_model(case.facts(), settings)))


@pytest.mark.parametrize("index", range(len(CASES)), ids=map(str, CASES))
def test_the_exact_bytes_are_locked(index: int, results: list[list[dict[str, Any]]]) -> None:
    rows = [row for row in native_rows(CASES[index]) if row.kind != "outgoing"]  # of weights on their way to a GPU
    planned = sum(sum(row.pinned_blocks) or row.bytes for row in rows if row.pinned_blocks or row.kind == "unreleased")
    counted = [rank[index]["native"] for rank in results]
    assert max(sum(each["blocks"]) for each in counted) == planned
    assert all(each["locked"] >= sum(each["blocks"]) for each in counted)


@pytest.mark.parametrize("index", range(len(CASES)), ids=map(str, CASES))
def test_the_allocator_changes_no_bit_of_what_is_trained(index: int, results: list[list[dict[str, Any]]]) -> None:
    for rank in results:
        assert rank[index]["native"]["weights"] == rank[index]["torch"]["weights"]
