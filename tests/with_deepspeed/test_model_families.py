"""Parameter counts and names against `transformers` on the meta device. Needs torch and transformers; seconds."""

from __future__ import annotations

from typing import Any

import pytest

from harness.facts.model_families import FAMILIES
from harness.facts.models import ModelFacts, from_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 101}
_KV = {"num_key_value_heads": 2, "intermediate_size": 80, "head_dim": 12}

CASES: dict[str, list[dict[str, Any]]] = {
    "llama": [
        {**_SMALL, **_KV},
        {**_SMALL, "intermediate_size": 80, "attention_bias": True, "mlp_bias": True},
        {**_SMALL, **_KV, "tie_word_embeddings": True},
    ],
    "mistral": [{**_SMALL, **_KV}, {**_SMALL, "num_key_value_heads": 6}],
    "qwen2": [{**_SMALL, "num_key_value_heads": 2, "intermediate_size": 80, "tie_word_embeddings": True}],
    "qwen3": [{**_SMALL, **_KV}, {**_SMALL, **_KV, "attention_bias": True}],
    "phi3": [{**_SMALL, "num_key_value_heads": 3, "intermediate_size": 80, "pad_token_id": None}],
    "gemma2": [{**_SMALL, **_KV}],
    "gemma3_text": [{**_SMALL, **_KV}],
    "mixtral": [{**_SMALL, **_KV, "num_local_experts": 4}],
    "qwen3_moe": [{**_SMALL, **_KV, "num_experts": 4, "moe_intermediate_size": 24}],
    "gpt2": [
        {"n_embd": 48, "n_layer": 3, "n_head": 6, "vocab_size": 101, "n_positions": 77},
        {**_SMALL, "n_inner": 100},
    ],
    "gpt_neox": [{**_SMALL, "intermediate_size": 80}, {**_SMALL, "tie_word_embeddings": True, "attention_bias": False}],
}


def built(kind: str, fields: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def facts(kind: str, fields: dict[str, Any]) -> ModelFacts:
    found = from_config({"model_type": kind, **fields})
    assert found.facts is not None, found.why_not
    return found.facts


def test_every_family_has_a_case() -> None:
    assert set(CASES) == set(FAMILIES)


@pytest.mark.parametrize(("kind", "fields"), [(k, f) for k, rows in CASES.items() for f in rows])
def test_names_shapes_and_order_are_those_of_transformers(kind: str, fields: dict[str, Any]) -> None:
    expected = [(name, tuple(p.shape)) for name, p in built(kind, fields).named_parameters()]
    assert [(p.name, p.shape) for p in facts(kind, fields).parameters()] == expected


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_defaults_are_those_of_transformers(kind: str) -> None:
    """With nothing but the number of layers given, everything else comes from the pinned defaults."""
    fields: dict[str, Any] = {"n_layer": 1} if kind == "gpt2" else {"num_hidden_layers": 1}
    if kind == "phi3":
        fields["pad_token_id"] = None
    expected = [(name, tuple(p.shape)) for name, p in built(kind, fields).named_parameters()]
    assert [(p.name, p.shape) for p in facts(kind, fields).parameters()] == expected
    layers = transformers.AutoConfig.for_model(kind).num_hidden_layers
    assert facts(kind, {}).num_layers == layers


def test_an_untied_model_has_the_same_properties_as_the_module() -> None:
    model, mine = built("llama", CASES["llama"][0]), facts("llama", CASES["llama"][0])
    assert mine.num_parameters == sum(p.numel() for p in model.parameters())
    assert mine.largest_parameter == max(p.numel() for p in model.parameters())
    assert mine.per_layer == sum(p.numel() for p in model.model.layers[0].parameters())
