# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline by hand; `tests/training/pipeline/test_pipeline_families.py` has those of live engines."""

from __future__ import annotations

import pytest

from harness.facts.model_facts import ModelFacts
from harness.facts.model_lookup import facts_from_config
from harness.plan.weights.pipeline_partition import _divide_evenly, _divide_uniformly, stage_parameters

SIZES = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}


def model(family: str = "llama", **fields: object) -> ModelFacts:
    facts = facts_from_config({"model_type": family, **SIZES, **fields}).facts
    assert facts is not None
    return facts


@pytest.mark.parametrize(
    ("weights", "parts", "bounds"),
    [((1, 1, 1, 1), 2, [0, 2, 4]), ((9, 1, 1, 1), 2, [0, 1, 4]), ((1, 2), 3, [0, 1, 2, 2])],
)
def test_layers_are_balanced_by_weight(weights: tuple[int, ...], parts: int, bounds: list[int]) -> None:
    assert _divide_evenly(weights, parts) == bounds


def test_layers_that_do_not_divide_go_to_the_first_stages() -> None:
    assert _divide_uniformly(7, 3) == [0, 3, 5, 7]
    assert _divide_uniformly(2, 4) == [0, 1, 2, 2, 2]


def test_the_stages_have_every_weight_once_and_a_tied_embedding_twice() -> None:
    for tied in (False, True):
        facts = model(tie_word_embeddings=tied)
        stages = stage_parameters(facts, 2, 1, "parameters")
        assert sum(p.numel for stage in stages for p in stage) == facts.num_parameters + tied * 64 * 8


@pytest.mark.parametrize(
    ("method", "decoders"),
    [
        ("uniform", [3, 1]),
        ("type:DecoderLayer", [2, 2]),
        ("type:Llama\\w*", [3, 1]),  # with the norm, 5 layers
        ("type:^Embedding|Linear", [4, 0]),
        ("type:(", [2, 2]),  # what follows is refused by PP015
        ("type:GPT2Block", [2, 2]),
    ],
)
def test_a_method_decides_the_stages(method: str, decoders: list[int]) -> None:
    stages = stage_parameters(model(), 2, 1, method)
    layers = [sum(p.name == "self_attn.q_proj.weight" for p in stage) for stage in stages]
    assert layers == decoders


def test_layer_and_block_match_the_norm_of_gpt2() -> None:
    gpt2 = facts_from_config({"model_type": "gpt2", "n_embd": 8, "n_layer": 4, "n_head": 2, "vocab_size": 64}).facts
    assert gpt2 is not None
    for pattern, blocks in (("Layer|Block", [3, 1]), ("Block$", [2, 2])):
        stages = stage_parameters(gpt2, 2, 1, f"type:{pattern}")
        assert [sum(p.name == "attn.c_attn.weight" for p in stage) for stage in stages] == blocks


def test_tensor_ranks_divide_matrices_and_biases_of_column_parallel_linears() -> None:
    (first, _), (shard, _) = (stage_parameters(model("qwen2"), 2, size, "parameters") for size in (1, 2))
    whole = {p.name: p.numel for p in first}
    part = {p.name: p.numel for p in shard}
    halved = {name for name in whole if 2 * part[name] == whole[name]}
    assert {name for name in whole if part[name] == whole[name]} == set(whole) - halved
    assert set(whole) - halved == {"input_layernorm.weight", "post_attention_layernorm.weight"}
