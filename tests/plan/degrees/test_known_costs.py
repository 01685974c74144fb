# SPDX-License-Identifier: Apache-2.0
"""Planned GPU hours of two runs whose cost was published. No constant is fitted to them. Needs nothing; a second."""

from __future__ import annotations

import pytest

from benchmarks.known_costs import KNOWN_COSTS, VIRTUAL_STAGES, KnownCost, plan_known_cost, plan_row

TOLERANCE = 1.25


@pytest.mark.parametrize("known", KNOWN_COSTS, ids=lambda known: known.name)
def test_planned_hours_are_within_a_quarter_of_the_published(known: KnownCost) -> None:
    hours, low, high = plan_known_cost(known).gpu_hours(known.tokens)
    assert known.gpu_hours / TOLERANCE <= hours <= known.gpu_hours * TOLERANCE
    assert low < hours < high


@pytest.mark.parametrize("known", KNOWN_COSTS, ids=lambda known: known.name)
def test_the_published_degrees_are_a_world(known: KnownCost) -> None:
    plan = plan_known_cost(known)
    degrees = known.request.degrees
    assert degrees.data * degrees.replica == degrees.world_size
    assert plan.work.tokens == known.request.tokens_per_step
    assert not [note for note in plan.notes if "whole number" in note]


def megatron_row(**changes: object) -> dict[str, object]:
    """A row as the published ones are."""
    return {
        "model": "Llama-3-70B",
        "config": {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
                   "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256},
        "gpu": "H100-80GB", "gpus": 64, "gpus_per_node": 8, "tp": 4, "pp": 8, "cp": 1, "ep": 1, "micro_batch": 1,
        "global_batch_sequences": 256, "seq_len": 8192, "precision": "fp8-cs",
    } | changes  # fmt: skip


def test_a_row_of_megatron_is_planned_with_its_degrees() -> None:
    result = plan_row(megatron_row())
    assert result.tokens_per_second is not None
    assert result.tokens_per_second > 0
    assert VIRTUAL_STAGES["Llama-3-70B", "H100", 8, 64] == 5
    assert "is not known" in plan_row(megatron_row(gpu="X1-80GB")).why_not
    assert "not a multiple" in plan_row(megatron_row(tp=3)).why_not
