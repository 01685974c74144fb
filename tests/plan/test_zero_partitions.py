# SPDX-License-Identifier: Apache-2.0
"""Partitions, padding, sub-groups and ownership on numbers that can be followed by hand. Needs nothing; milliseconds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from harness.facts.model_lookup import ModelFacts, Parameter, facts_from_config, find_model
from harness.plan.memory.zero_partitions import (
    _DIVIDED_BY,
    _PARTITIONED_BY,
    _owned_gradient_numel,
    _split_sub_groups,
    local_parameters,
    partition_model,
    split_local_parameters,
    weight_decay_group_sizes,
)
from harness.plan.settings.plan_settings import PlanSettings
from tests.support.plan_inputs import TINY, settings


def tiny() -> ModelFacts:
    facts = facts_from_config(TINY).facts
    assert facts is not None
    return facts


def test_stages_1_and_2_pad_a_group_to_twice_the_ranks() -> None:
    z = partition_model(tiny(), settings(TINY, ranks=3, zero={"stage": 2}))
    assert z.total == 94_912
    assert (z.padded_total, z.partition_size) == (94_914, 31_638)


def test_stage_3_pads_each_parameter() -> None:
    z = partition_model(tiny(), settings(TINY, ranks=3))
    assert z.partition_size == sum(-(-p.numel // 3) for p in tiny().parameters())


def test_vectors_do_not_decay() -> None:
    matrix, vector = Parameter("w", (3, 2)), Parameter("b", (3,))
    assert weight_decay_group_sizes([matrix, vector], decay=True) == ((6,), (3,))
    assert weight_decay_group_sizes([matrix, vector], decay=False) == ((6, 3),)


def test_a_parameter_on_a_border_is_owned_whole_by_both_ranks() -> None:
    assert _owned_gradient_numel(((7, 4),), 2) == (7, 7 + 4 + 1)


def test_a_sub_group_closes_once_it_is_full() -> None:
    assert _split_sub_groups((10, 10, 10, 2), (5, 5, 5, 1), 8) == [(10, 20), (6, 12)]
    assert _split_sub_groups((10, 2), (5, 1), 6) == [(6, 12)]


def test_tensor_parallel_divides_matrices_of_layers_and_pipeline_divides_layers() -> None:
    whole = sum(p.numel for p in local_parameters(tiny(), settings(TINY)))
    tensor = local_parameters(tiny(), settings(TINY, parallel={"tensor_parallel_size": 2}, zero={"stage": 1}))
    vectors = sum(p.numel for p in tiny().largest_layer if len(p.shape) == 1)
    head = 259 * 64 - 130 * 64
    assert whole - sum(p.numel for p in tensor) == 2 * (tiny().largest_layer_parameters - vectors) // 2 + head
    pipeline = local_parameters(tiny(), settings(TINY, parallel={"pipeline_parallel_size": 2}, zero={"stage": 1}))
    assert sum(p.numel for p in pipeline) == tiny().largest_layer_parameters + 64 + 259 * 64  # last norm, and head
    both = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    shard = local_parameters(tiny(), settings(TINY, parallel=both, zero={"stage": 1}, ranks=4))
    assert sum(p.numel for p in shard) == (tiny().largest_layer_parameters - vectors) // 2 + vectors + 64 + 130 * 64


def test_muon_steps_the_matrices_of_the_layers_in_a_group_of_their_own() -> None:
    matrices = sum(p.numel for layer in tiny().layers for p in layer if len(p.shape) > 1)
    for stage in (2, 3):
        z = partition_model(tiny(), settings(TINY, ranks=2, zero={"stage": stage}, optimizer={"type": "muon"}))
        assert z.muon_partition == matrices // 2
        other = partition_model(tiny(), settings(TINY, ranks=2, zero={"stage": stage}))
        assert (z.partition_size, other.muon_partition) == (other.partition_size, 0)


def test_sixteen_thousand_ranks_take_under_a_second() -> None:
    facts = find_model("llama-3.1-405b").facts
    assert facts is not None
    begun = time.process_time()
    z = partition_model(facts, settings(ranks=16_384, zero={"stage": 2}))
    assert time.process_time() - begun < 1
    assert max(z.owned_gradients) >= facts.largest_parameter


READ: set[str] = set()


class _Watched(PlanSettings):
    """Settings that note in `READ` which of their values are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in PlanSettings.__dataclass_fields__:
            READ.add(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("degrees", [{}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
@pytest.mark.parametrize("model", [{}, {"lora": {"r": 8}}, {"freeze": ["*embed*"]}])
def test_a_partition_is_known_by_all_that_it_depends_on(name: str, degrees: dict[str, int], model: Any) -> None:
    """What was counted before is not counted again: a value that is read and not asked for would be wrong."""
    facts = find_model(name).facts
    assert facts is not None
    for stage, kind in ((0, "adamw"), (1, "muon"), (2, "adamw"), (3, "adamw")):
        run = settings(TINY, ranks=4, parallel=degrees, zero={"stage": stage}, optimizer={"type": kind}, model=model)
        watched = object.__new__(_Watched)
        watched.__dict__.update(run.__dict__)
        for function, key in ((partition_model, _PARTITIONED_BY), (split_local_parameters, _DIVIDED_BY)):
            READ.clear()
            function.__wrapped__(facts, watched)  # type: ignore[attr-defined]
            read = set(READ)
            READ.clear()
            key(watched)
            assert read <= READ, f"also depends on {read - READ}"
