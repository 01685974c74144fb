# SPDX-License-Identifier: Apache-2.0
"""A tiny copy of any configuration: the same divisions, two layers of each kind, and no table of families."""

from __future__ import annotations

import json

from harness.runtime.tiny_config import ATTEMPTS, MAX_LAYERS, VOCAB_SIZE, shrink_config

DENSE = {
    "model_type": "made-up",
    "vocab_size": 128_256,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "eos_token_id": [128_001, 7],
    "sliding_window": 4096,
}


def test_widths_shrink_by_one_factor_and_divide_as_before() -> None:
    small = shrink_config(DENSE)
    assert small["hidden_size"] == 128
    assert small["num_attention_heads"] / small["num_key_value_heads"] == 8
    assert small["hidden_size"] // small["num_attention_heads"] == 8
    assert small["intermediate_size"] == 64
    assert (small["vocab_size"], small["eos_token_id"]) == (VOCAB_SIZE, [VOCAB_SIZE - 1, 7])
    assert shrink_config({**DENSE, "vocab_size": 64})["vocab_size"] == VOCAB_SIZE, "the ids of the questions"
    assert small["sliding_window"] == 8, "shorter than a document, so that a layer without it shows"
    chunks = shrink_config({**DENSE, "chunk_size": 256, "attention_chunk_size": 8192, "index_topk": 2048})
    assert (chunks["chunk_size"], chunks["attention_chunk_size"], chunks["index_topk"]) == (8, 8, 8)
    indexed = shrink_config({**DENSE, "index_n_heads": 64, "index_block_size": 128, "index_topk_blocks": 16})
    assert [indexed[name] for name in ("index_n_heads", "index_block_size", "index_topk_blocks")] == [64, 4, 2]
    assert small["num_hidden_layers"] == shrink_config({**DENSE, "num_blocks": 80})["num_blocks"] == 2
    zamba = shrink_config({**DENSE, "n_mamba_heads": 2})
    assert (zamba["n_mamba_heads"], zamba["hidden_size"]) == (2, 128), "few heads of states keep no width"


def test_of_layers_by_a_list_two_of_each_kind_stay_with_their_counts_and_indices() -> None:
    kinds = ["linear", "linear", "linear", "full"] * 20
    small = shrink_config({**DENSE, "layer_types": kinds, "full_attention_interval": 4})
    assert (small["layer_types"], small["num_hidden_layers"]) == (["linear", "linear", "full", "full"], 4)
    assert shrink_config({**DENSE, "pattern": "M-M*" * 20})["pattern"] == "M-M*-*"
    assert shrink_config({**DENSE, "layer_types": ["a"] * 70 + ["b"] * 10})["layer_types"] == ["a", "a", "b", "b"]
    indices = {"full_layer_ids": [*range(4, 81, 4)], "linear_layer_ids": [i for i in range(1, 81) if i % 4]}
    small = shrink_config({**DENSE, "layer_types": kinds, "linear_attn_config": indices, "first_k_dense_replace": 1})
    assert small["layer_types"] == ["linear", "linear", "full", "full"]
    assert small["linear_attn_config"] == {"full_layer_ids": [3, 4], "linear_layer_ids": [1, 2]}, "counted from 1"
    shared = shrink_config({**DENSE, "layer_types": kinds, "num_kv_shared_layers": 8, "n_layers_per_block": 8})
    assert (shared["num_kv_shared_layers"], shared["n_layers_per_block"], shared["num_hidden_layers"]) == (3, 3, 6)


def test_without_such_a_list_the_prefix_has_two_layers_of_each_kind() -> None:
    kinds = ["linear", "linear", "linear", "full"] * 20
    assert shrink_config({**DENSE, "layer_types": kinds, "expert_layer_period": 3})["layer_types"] == kinds[:8]
    assert shrink_config({**DENSE, "layer_types": kinds, "mtp_layer_ids": [9, 11]})["num_hidden_layers"] == 12
    assert shrink_config({**DENSE, "layer_types": kinds}, ATTEMPTS[8])["layer_types"] == kinds[:8]
    assert shrink_config({**DENSE, "attn_layer_period": 8, "attn_layer_offset": 4})["num_hidden_layers"] == 16
    indexed = shrink_config({**DENSE, "attn_layer_indices": [4, 9, 30, 79]})
    assert (indexed["num_hidden_layers"], indexed["attn_layer_indices"]) == (10, [4, 9])
    assert shrink_config({**DENSE, "first_k_dense_replace": 3})["num_hidden_layers"] == 5
    assert shrink_config({**DENSE, "attn_layer_period": 40})["num_hidden_layers"] == MAX_LAYERS
    stacks = shrink_config({**DENSE, "num_layers_per_stack": 10})
    assert (stacks["num_hidden_layers"], stacks["num_layers_per_stack"]) == (16, 2), "two layers of each of 8 calls"


def test_nested_parts_groups_of_experts_and_sections_of_positions() -> None:
    text = {**DENSE, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4}
    text |= {"rope_parameters": {"mrope_section": [24, 20, 20], "rope_theta": 1e6}}
    small = shrink_config({"model_type": "outer", "text_config": text, "image_token_id": 128_000})["text_config"]
    assert small["n_routed_experts"] % small["n_group"] == 0
    assert small["n_routed_experts"] // small["n_group"] * small["topk_group"] >= small["num_experts_per_tok"]
    head = small["hidden_size"] // small["num_attention_heads"]
    assert sum(small["rope_parameters"]["mrope_section"]) == head // 2


def test_a_larger_copy_only_loses_layers() -> None:
    small = shrink_config(DENSE, ATTEMPTS[-1])
    assert {key for key in DENSE if small[key] != DENSE[key]} == {"vocab_size", "eos_token_id", "num_hidden_layers"}
    json.dumps(small)
