# SPDX-License-Identifier: Apache-2.0
"""Shards of weights over a tensor group: of every family, by the name of a weight, there and back."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.errors import UserError
from harness.runtime.pipeline.shard_rules import WeightPartition, find_indivisible, find_partition, shard_rules
from tests.training.jobs.pipeline_families import FAMILIES

WHOLE = ("norm", "ln_", "wpe", "c_proj.bias", "o_proj.bias", "down_proj.bias")
"""Parts of the names of what every tensor rank has."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_of_a_family_has_a_partition(family: str) -> None:
    fields = dict(FAMILIES[family])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        shape = [*weight.shape]
        is_whole = any(part in name for part in WHOLE)
        assert (find_partition(config, name, shape, 2) is None) == is_whole, name


def test_a_plan_that_is_not_known_to_train_the_model_is_refused() -> None:
    """Apertus has parameters in its activation whose gradients AutoTP does not sum."""
    with pytest.raises(UserError) as refused:
        shard_rules(AutoConfig.for_model("apertus"))
    assert refused.value.findings[0].gate == "PP106"


@pytest.mark.parametrize(
    "partition",
    [
        WeightPartition((8, 6), 0),
        WeightPartition((6, 8), 1),
        WeightPartition((16, 3), 0, (8, 4, 4)),
        WeightPartition((3, 12), 1, (4, 4, 4)),
        WeightPartition((12,), 0, (4, 4, 4)),
        WeightPartition((5,)),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_joined_shards_are_the_whole_weight(partition: WeightPartition, size: int) -> None:
    whole = torch.arange(float(torch.Size(partition.shape).numel())).view(partition.shape)
    shards = [partition.take_shard(whole, rank, size) for rank in range(size)]
    assert partition.join_shards(shards).equal(whole)
    assert all(shard.is_contiguous() for shard in shards)


def test_a_fused_weight_gives_each_rank_a_part_of_every_piece() -> None:
    partition = WeightPartition((8,), 0, (4, 2, 2))
    assert partition.take_shard(torch.arange(8), 1, 2).tolist() == [2, 3, 5, 7]


def test_a_piece_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="do not divide"):
        WeightPartition((6,), 0, (4, 2)).take_shard(torch.arange(6), 0, 4)


def test_every_family_of_the_pipeline_has_rules() -> None:
    for fields in FAMILIES.values():
        rules = shard_rules(AutoConfig.for_model(fields["model_type"]))
        assert {rule.style.partition("-")[0] for rule in rules.values()} >= {"column", "row"}


def test_widths_that_do_not_divide_are_named() -> None:
    config = AutoConfig.for_model("gpt2")
    assert find_indivisible(config, 3) == (50257, "tokens of the vocabulary")
    assert find_indivisible(config, 5) == (12, "attention heads")
    assert find_indivisible(config, 1) is None
