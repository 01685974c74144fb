# SPDX-License-Identifier: Apache-2.0
"""Parameter counts and names against `transformers` on the meta device. Needs torch and transformers; seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

from harness.facts.model_catalogue import CATALOGUE
from harness.facts.model_families import FAMILIES, SAME_FAMILY
from harness.facts.model_lookup import ModelFacts, facts_from_config
from harness.runtime.text_part import find_text_part

_SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 101}
_KV = {"num_key_value_heads": 2, "intermediate_size": 80, "head_dim": 12}

_LATENT = {
    "kv_lora_rank": 20,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "moe_intermediate_size": 24,
}
CASES: dict[str, list[dict[str, Any]]] = {
    "llama": [
        {**_SMALL, **_KV},
        {**_SMALL, "intermediate_size": 80, "attention_bias": True, "mlp_bias": True},
        {**_SMALL, **_KV, "tie_word_embeddings": True},
    ],
    "mistral": [{**_SMALL, **_KV}, {**_SMALL, "num_key_value_heads": 6}],
    "qwen2": [{**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80, "tie_word_embeddings": True}],
    "qwen3": [{**_SMALL, **_KV}, {**_SMALL, **_KV, "attention_bias": True}],
    "phi": [
        {**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80},
        {**_SMALL, "intermediate_size": 80, "qk_layernorm": True},
    ],
    "phi3": [{**_SMALL, "num_key_value_heads": 3, "intermediate_size": 80, "pad_token_id": None}],
    "gemma": [{**_SMALL, **_KV}, {**_SMALL, **_KV, "attention_bias": True, "tie_word_embeddings": False}],
    "gemma2": [{**_SMALL, **_KV}],
    "gemma3_text": [{**_SMALL, **_KV}],
    "gemma3": [
        {"text_config": {**_SMALL, **_KV}, "vision_config": {"num_hidden_layers": 2, "hidden_size": 24}},
        {"text_config": {**_SMALL, **_KV}, "vision_config": {"num_hidden_layers": 1, "vision_use_head": False}},
    ],
    "falcon": [
        {**_SMALL, "multi_query": True},
        {**_SMALL, "multi_query": False, "bias": True, "parallel_attn": False},
        {**_SMALL, "new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 100},
        {**_SMALL, "new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1, "bias": True},
        {**_SMALL, "new_decoder_architecture": True, "num_kv_heads": 3, "tie_word_embeddings": False},
    ],
    "mixtral": [{**_SMALL, **_KV, "num_local_experts": 4}],
    "qwen2_moe": [
        {**_SMALL, "num_key_value_heads": 2, "num_experts": 4, "moe_intermediate_size": 24, "qkv_bias": False},
        {**_SMALL, "num_experts": 4, "decoder_sparse_step": 2, "shared_expert_intermediate_size": 40},
        {**_SMALL, "num_experts": 4, "mlp_only_layers": [1], "tie_word_embeddings": True},
    ],
    "qwen3_moe": [
        {**_SMALL, **_KV, "num_experts": 4, "moe_intermediate_size": 24},
        {**_SMALL, **_KV, "num_experts": 4, "mlp_only_layers": [0, 2], "attention_bias": True},
    ],
    "gpt_oss": [
        {**_SMALL, **_KV, "num_local_experts": 4},
        {**_SMALL, **_KV, "num_local_experts": 4, "attention_bias": False, "tie_word_embeddings": True},
    ],
    "deepseek_v2": [
        {**_SMALL, **_LATENT, "first_k_dense_replace": 1, "intermediate_size": 80},
        {**_SMALL, **_LATENT, "q_lora_rank": None, "attention_bias": True},
    ],
    "deepseek_v3": [
        {**_SMALL, **_LATENT, "first_k_dense_replace": 2, "intermediate_size": 80, "n_shared_experts": 2},
        {**_SMALL, **_LATENT, "first_k_dense_replace": 5, "intermediate_size": 80},
        {**_SMALL, **_LATENT, "q_lora_rank": None, "attention_bias": True, "tie_word_embeddings": True},
    ],
    "gpt2": [
        {"n_embd": 48, "n_layer": 3, "n_head": 6, "vocab_size": 101, "n_positions": 77},
        {**_SMALL, "n_inner": 100},
    ],
    "smollm3": [{**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80, "pad_token_id": None}],
    "granite": [{**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80, "mlp_bias": True}],
    "seed_oss": [{**_SMALL, **_KV}, {**_SMALL, **_KV, "attention_out_bias": True, "mlp_bias": True}],
    "olmo2": [{**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80}],
    "olmo3": [{**_SMALL, "intermediate_size": 80, "attention_bias": True}],
    "hunyuan_v1_dense": [{**_SMALL, **_KV}],
    "cohere": [
        {**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80},
        {**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80, "use_qk_norm": True},
    ],
    "cohere2": [{**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80, "tie_word_embeddings": False}],
    "nemotron": [{**_SMALL, **_KV}, {**_SMALL, **_KV, "mlp_bias": True, "attention_bias": True}],
    "ernie4_5": [{**_SMALL, **_KV}, {**_SMALL, **_KV, "use_bias": True, "tie_word_embeddings": False}],
    "bloom": [{"hidden_size": 48, "n_layer": 3, "n_head": 6, "vocab_size": 101}],
    "opt": [{**_SMALL, "ffn_dim": 80, "word_embed_proj_dim": 48, "max_position_embeddings": 33}],
    "mpt": [{"d_model": 48, "n_heads": 6, "n_layers": 3, "vocab_size": 101, "expansion_ratio": 3}],
    "glm4_moe": [
        {**_SMALL, **_KV, "n_routed_experts": 4, "moe_intermediate_size": 24, "use_qk_norm": True},
        {**_SMALL, **_KV, "n_routed_experts": 4, "first_k_dense_replace": 2, "attention_bias": True},
    ],
    "deepseek_v32": [{**_SMALL, **_LATENT, "first_k_dense_replace": 1, "intermediate_size": 80, "index_n_heads": 4}],
    "minimax_m2": [{**_SMALL, **_KV, "num_local_experts": 4}],
    "ernie4_5_moe": [
        {**_SMALL, "moe_num_experts": 4, "moe_intermediate_size": 24, "intermediate_size": 80},
        {**_SMALL, "moe_num_experts": 4, "moe_num_shared_experts": 0, "moe_layer_start_index": 2, "use_bias": True},
        {**_SMALL, "moe_num_experts": 4, "moe_layer_interval": 2, "moe_layer_end_index": 1},
    ],
    "qwen3_next": [
        {**_SMALL, **_KV, "num_hidden_layers": 5, "num_experts": 4, "moe_intermediate_size": 24},
        {**_SMALL, **_KV, "num_experts": 4, "layer_types": ["full_attention", "linear_attention", "full_attention"]},
        {**_SMALL, **_KV, "num_experts": 4, "mlp_only_layers": [1], "linear_num_key_heads": 8},
    ],
    "llama4_text": [
        {**_SMALL, **_KV, "num_local_experts": 4, "intermediate_size_mlp": 60},
        {**_SMALL, **_KV, "num_local_experts": 4, "interleave_moe_layer_step": 2, "attention_bias": True},
        {**_SMALL, **_KV, "num_local_experts": 4, "moe_layers": [2]},
    ],
    "llama4": [{"text_config": {**_SMALL, **_KV, "num_local_experts": 4}, "vision_config": {"num_hidden_layers": 1}}],
    "gpt_neox": [{**_SMALL, "intermediate_size": 80}, {**_SMALL, "tie_word_embeddings": True, "attention_bias": False}],
}


def built(kind: str, fields: dict[str, Any]) -> Any:
    """The model that a run trains: of a composite its text model."""
    config = transformers.AutoConfig.for_model(kind, **fields)
    config = find_text_part(config).config or config
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def facts(kind: str, fields: dict[str, Any]) -> ModelFacts:
    found = facts_from_config({"model_type": kind, **fields})
    assert found.facts is not None, found.why_not
    return found.facts


def test_every_family_has_a_case() -> None:
    assert set(CASES) == {*FAMILIES, "gemma3", "llama4"}


@pytest.mark.parametrize(("kind", "fields"), [(k, f) for k, rows in CASES.items() for f in rows])
def test_names_shapes_and_order_are_those_of_transformers(kind: str, fields: dict[str, Any]) -> None:
    expected = [(name, tuple(p.shape)) for name, p in built(kind, fields).named_parameters()]
    assert [(p.name, p.shape) for p in facts(kind, fields).parameters()] == expected


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_defaults_are_those_of_transformers(kind: str) -> None:
    """With nothing but the number of layers given, everything else comes from the pinned defaults."""
    layer = {"num_hidden_layers": 1}
    layer_keys = {"gpt2": "n_layer", "bloom": "n_layer", "mpt": "n_layers"}
    fields: dict[str, Any] = {layer_keys[kind]: 1} if kind in layer_keys else layer
    if kind in ("gemma3", "llama4"):
        fields = {"text_config": layer}
    # Defaults that transformers itself cannot build, or not without a smaller vocabulary.
    fields |= {
        "phi3": {"pad_token_id": None},
        "hunyuan_v1_dense": {"head_dim": 128},
        "nemotron": {"num_key_value_heads": 48},
    }.get(kind, {})
    expected = [(name, tuple(p.shape)) for name, p in built(kind, fields).named_parameters()]
    assert [(p.name, p.shape) for p in facts(kind, fields).parameters()] == expected
    layers = transformers.AutoConfig.for_model(kind).get_text_config().num_hidden_layers
    assert facts(kind, {}).num_layers == layers


def test_an_untied_model_has_the_same_properties_as_the_module() -> None:
    model, mine = built("llama", CASES["llama"][0]), facts("llama", CASES["llama"][0])
    assert mine.num_parameters == sum(p.numel() for p in model.parameters())
    assert mine.largest_parameter == max(p.numel() for p in model.parameters())
    assert mine.largest_layer_parameters == sum(p.numel() for p in model.model.layers[0].parameters())


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("olmoe", {**_SMALL, "intermediate_size": 80, "num_experts": 4}),
        (
            "starcoder2",
            {**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80, "bos_token_id": 1, "eos_token_id": 1},
        ),
    ],
)
def test_an_architecture_that_is_not_written_down_is_built(kind: str, fields: dict[str, Any]) -> None:
    found = facts_from_config({"model_type": kind, **fields}, build=True)
    assert found.facts is not None, found.why_not
    assert found.facts.built
    assert "built by transformers on the meta device" in found.source
    expected = [(name, tuple(p.shape)) for name, p in built(kind, fields).named_parameters()]
    assert [(p.name, p.shape) for p in found.facts.parameters()] == expected
    assert found.facts.num_layers == 3


def test_what_transformers_does_not_know_either_is_said() -> None:
    found = facts_from_config({"model_type": "no-such-model"}, build=True)
    assert found.facts is None
    assert "transformers could not build it either" in found.why_not


def catalogue() -> Iterator[Any]:
    """Of a type that has a formula and the keys that it gives, the entry of fewest layers; the others by night."""
    seen = set()
    for name in sorted(CATALOGUE, key=lambda name: (CATALOGUE[name].get("num_hidden_layers", 0), name)):
        kind, keys = CATALOGUE[name]["model_type"], frozenset(CATALOGUE[name])
        is_first = kind in {*FAMILIES, *SAME_FAMILY} and (kind, keys) not in seen
        yield pytest.param(name, marks=[] if is_first else [pytest.mark.nightly])
        seen.add((kind, keys))


@pytest.mark.parametrize("name", catalogue())
def test_the_catalogue_is_what_transformers_would_build(name: str) -> None:
    """Totals of every entry at full size: on the meta device nothing is allocated."""
    config = dict(CATALOGUE[name])
    kind = config.pop("model_type")
    expected = sum(
        p.numel() for p in built(kind, {**config, **({"pad_token_id": None} if kind == "phi3" else {})}).parameters()
    )
    found = facts_from_config(CATALOGUE[name], build=True).facts
    assert found is not None
    assert found.num_parameters == expected
    assert found.built == (kind not in FAMILIES and kind not in SAME_FAMILY)
