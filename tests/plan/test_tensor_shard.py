# SPDX-License-Identifier: Apache-2.0
"""AutoTP's parts of a model on numbers that can be followed by hand. Live engines: tests/training/plan/test_tensor_shards.py."""

from __future__ import annotations

from typing import Any

import pytest

from harness.facts.model_families import FAMILIES
from harness.facts.model_lookup import ModelFacts, Parameter, facts_from_config, find_model
from harness.plan.memory.zero_partitions import (
    local_num_parameters,
    local_vocab_size,
    partition_model,
    tensor_parallel_shard,
)
from harness.plan.planner import make_plan
from harness.plan.search.settings_search import search_settings
from harness.plan.weights.tensor_shard import TensorPlanChoice, shard_model
from tests.support.plan_inputs import TINY, plan_of, run_of, settings

GIB = 1 << 30


def facts_of(name: str | dict[str, Any]) -> ModelFacts:
    facts = find_model(name).facts if isinstance(name, str) else facts_from_config(name).facts
    assert facts is not None
    return facts


def test_rows_columns_biases_and_the_head() -> None:
    shard = shard_model(facts_of({**TINY, "attention_bias": True}), 2, TensorPlanChoice())
    shapes = {p.name.removeprefix("model.layers.1."): p.shape for p in shard.local_parameters()}
    assert shapes["self_attn.q_proj.weight"] == (32, 64)
    assert shapes["self_attn.q_proj.bias"] == (32,)
    assert shapes["self_attn.o_proj.weight"] == (64, 32)
    assert shapes["self_attn.o_proj.bias"] == (64,)
    assert shapes["mlp.down_proj.weight"] == (64, 48)
    assert shapes["input_layernorm.weight"] == (64,)
    assert shapes["model.embed_tokens.weight"] == (259, 64)
    assert shapes["lm_head.weight"] == (130, 64)
    assert dict(shard.local_parameters(1))["lm_head.weight"] == (129, 64)
    assert shard.head == "gathered"


def test_llamas_all_reduces_are_seven_a_layer_and_one_for_the_head() -> None:
    shard = shard_model(facts_of(TINY), 2, TensorPlanChoice())
    assert shard.reduced_width == (2 * 2 * 64, (2 * 5 + 1) * 64)
    assert shard.repeated_share == 0
    assert shard_model(facts_of(TINY), 1, TensorPlanChoice()).reduced_width == (0, 0)


def test_heads_are_dealt_out_whole_and_a_rank_may_have_none() -> None:
    shard = shard_model(facts_of(TINY), 4, TensorPlanChoice())
    keys = Parameter("model.layers.0.self_attn.k_proj.weight", (32, 64))
    assert [shard.local_shape(keys, rank)[0] for rank in range(4)] == [16, 16, 0, 0]
    gate = Parameter("model.layers.0.mlp.gate_proj.weight", (97, 64))
    assert [shard.local_shape(gate, rank)[0] for rank in range(4)] == [25, 24, 24, 24]


@pytest.mark.parametrize(
    ("family", "tied", "choice", "head"),
    [
        ("llama", True, {}, "vocabulary"),
        ("llama", True, {"vocab_parallel_lm_head": False}, "whole"),
        ("llama", False, {"vocab_parallel_lm_head": False}, "gathered"),
        ("llama", False, {"vocab_parallel_lm_head": True}, "vocabulary"),
        ("llama", True, {"preset_model": "LLAMA"}, "whole"),
        ("llama", False, {"preset_model": "lama"}, "gathered"),
        ("gemma2", True, {}, "whole"),
    ],
)
def test_the_head_is_whole_joined_or_in_parts_of_the_vocabulary(
    family: str, tied: bool, choice: dict[str, Any], head: str
) -> None:
    facts = facts_of({**TINY, "model_type": family, "tie_word_embeddings": tied})
    shard = shard_model(facts, 2, TensorPlanChoice.from_block(choice))
    assert shard.head == head
    embedding = dict(shard.local_parameters())["model.embed_tokens.weight"]
    assert embedding == ((130, 64) if tied and head == "vocabulary" else (259, 64))


def test_parts_of_fused_projections_are_divided_one_by_one() -> None:
    specs = [{"patterns": [r".*\.gate_up_proj\.weight$"], "partition_type": "column", "shape": [[5, 3], -1]}]
    config = {"layer_specs": specs, "use_default_specs": False}
    shard = shard_model(facts_of(TINY), 2, TensorPlanChoice(partition=config))
    fused = Parameter("model.layers.0.mlp.gate_up_proj.weight", (8, 64))
    assert [shard.local_shape(fused, rank) for rank in (0, 1)] == [(5, 64), (3, 64)]


def test_a_plan_of_ones_own_comes_before_the_preset_and_may_add_to_it() -> None:
    own = {"layer_specs": [{"patterns": [r".*\.q_proj\.weight$"], "partition_type": "skip"}]}
    name = "model.layers.0.self_attn.q_proj.weight"
    for default, role in ((True, "column"), (False, "whole")):
        choice = TensorPlanChoice("llama", {**own, "use_default_specs": default})
        shard = shard_model(facts_of(TINY), 2, choice)
        assert shard.role_of(name) == "whole"
        assert shard.role_of(name.replace("q_proj", "k_proj")) == role


@pytest.mark.parametrize(
    ("name", "preset", "whole_bytes"),
    [
        ("openai/gpt-oss-120b", "", 217 * GIB),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral", 85 * GIB),
        ("Qwen/Qwen3-30B-A3B", "qwen2", 56 * GIB),
    ],
)
def test_fused_experts_stay_on_every_rank(name: str, preset: str, whole_bytes: int) -> None:
    block = {"tensor_parallel": {"preset_model": preset}} if preset else {}
    run = settings(name, 8, parallel={"tensor_parallel_size": 8}, zero={"stage": 0}, deepspeed=block)
    model = facts_of(name)
    assert 2 * local_num_parameters(model, run) == pytest.approx(whole_bytes, rel=0.01)
    assert not tensor_parallel_shard(model, run).divides_mlp
    experts = sum(p.numel for p in model.largest_layer if ".experts." in p.name)
    assert partition_model(model, run).largest_module == max(
        experts, model.vocab * model.hidden // (1 if preset else 8)
    )
    assert local_vocab_size(model, run) == (model.vocab if preset else -(-model.vocab // 8))


def test_gpt_oss_needs_as_much_with_autotp_as_without() -> None:
    plans = [plan_of("gpt-oss-120b", 8, parallel={"tensor_parallel_size": n}, zero={"stage": 0}) for n in (1, 8)]
    whole, divided = (plan.memory.gpu_peak for plan in plans if plan.memory is not None)
    assert whole * 0.98 < divided < whole


def test_activations_are_divided_where_the_mlps_are() -> None:
    def of_layers(which: str | dict[str, Any], tensor: int) -> int:
        memory = plan_of(
            which, 8, parallel={"tensor_parallel_size": tensor}, train={"gradient_checkpointing": False}
        ).memory
        assert memory is not None
        return next(item.bytes for item in memory.items if item.description.startswith("activations of"))

    assert of_layers("gpt-oss-120b", 8) == of_layers("gpt-oss-120b", 1)
    assert of_layers("llama-3.1-70b", 8) < of_layers("llama-3.1-70b", 1) / 2


@pytest.mark.parametrize(
    ("name", "has_tensor"),
    [("gpt-oss-120b", False), ("Qwen3-30B-A3B", False), ("falcon-40b", False), ("llama-3.1-70b", True)],
)
def test_the_search_offers_no_tensor_degree_that_divides_nothing(name: str, has_tensor: bool) -> None:
    plan = make_plan(run_of(name, 8))
    assert plan.model is not None
    assert plan.settings is not None
    found = search_settings(plan.run, plan.model, plan.device, plan.capacity)
    assert any(each.settings.tensor_parallel_size > 1 for each in found) == has_tensor


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gpt-oss-20b", "gemma-3-1b", "qwen3-0.6b", "deepseek-v3", "falcon-7b"]
)
def test_the_number_of_local_elements_is_that_of_the_local_parameters(name: str) -> None:
    facts = find_model(name).facts
    assert facts is not None
    for degree in (2, 8):
        shard = shard_model(facts, degree, TensorPlanChoice())
        assert shard.num_local_parameters == sum(parameter.numel for parameter in shard.local_parameters())


def test_the_plan_of_every_family_is_known() -> None:
    for family in FAMILIES:
        facts = facts_from_config({"model_type": family, "num_hidden_layers": 1}).facts
        assert facts is not None
        if facts.counted_only:
            continue
        assert shard_model(facts, 2, TensorPlanChoice()).is_known, f"add `{family}` to the facts of tensor plans"


def test_a_family_without_a_known_plan_is_divided_as_if_all_of_it_were() -> None:
    other = facts_of(TINY)._replace(family="other", built=True)
    run = settings(TINY, 8, parallel={"tensor_parallel_size": 2}, zero={"stage": 1})
    matrices = sum(p.numel for layer in other.layers for p in layer if len(p.shape) == 2)
    assert other.num_parameters - local_num_parameters(other, run) == matrices // 2 + 129 * 64
    assert shard_model(other, 2, TensorPlanChoice()).is_useful
    assert shard_model(other, 2, TensorPlanChoice("llama")).is_known


def test_a_frozen_part_is_divided_as_well() -> None:
    parts = {"parallel": {"tensor_parallel_size": 2}, "zero": {"stage": 2}}
    run = settings(TINY, 2, model={"config": TINY, "train_only": ["lm_head*"]}, **parts)
    partitions = partition_model(facts_of(TINY), run)
    assert partitions.total == 130 * 64
    assert partitions.whole == local_num_parameters(facts_of(TINY), run)
