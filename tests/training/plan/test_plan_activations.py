# SPDX-License-Identifier: Apache-2.0
"""Saved activations against hooks on real `transformers` modules on the CPU. Needs torch and transformers; seconds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from harness.facts.model_lookup import facts_from_config
from harness.plan.activation_bytes import MicroBatchShape, checkpointed_input_bytes, head_bytes, layer_bytes

_SMALL = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 199}
_KV = {**_SMALL, "num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 16}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", _KV),
    ("mistral", _KV),
    ("qwen2", {k: v for k, v in _KV.items() if k != "head_dim"}),
    ("qwen3", _KV),
    ("gemma2", _KV),
    ("gemma3_text", _KV),
    ("phi3", {**{k: v for k, v in _KV.items() if k != "head_dim"}, "pad_token_id": None}),
    ("mixtral", {**_KV, "num_local_experts": 4}),
    ("gemma", _KV),
    ("phi", {k: v for k, v in _KV.items() if k != "head_dim"}),
    ("falcon", {**_SMALL, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("gpt_oss", {**_KV, "num_local_experts": 4, "num_experts_per_tok": 2}),
    (
        "qwen2_moe",
        {
            **{k: v for k, v in _KV.items() if k != "head_dim"},
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
        },
    ),
    ("gpt2", {**_SMALL, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    ("gpt_neox", {**_SMALL, "intermediate_size": 96}),
]
_TO_THE_BYTE = ("llama", "mistral", "qwen2", "qwen3", "phi", "phi3", "gpt2", "gpt_neox")
_DTYPES = {2: torch.bfloat16, 4: torch.float32}


def saved(kind: str, fields: dict[str, Any], layers: int, e: int, attention: str, checkpointing: bool = False) -> int:
    """Bytes of unique storages that forward saves, parameters and buffers left out; 2 sequences of 32 tokens."""
    count = "n_layer" if kind == "gpt2" else "num_hidden_layers"
    config = transformers.AutoConfig.for_model(kind, **fields, **{count: layers}, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(_DTYPES[e]).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    seen: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage
        return tensor

    tokens = torch.randint(0, 100, (2, 32))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = model(input_ids=tokens, labels=tokens).loss
    total = sum(storage.nbytes() for storage in seen.values())
    del loss
    return total


def facts(kind: str, fields: dict[str, Any]) -> Any:
    found = facts_from_config({"model_type": kind, **fields})
    assert found.facts is not None
    return found.facts


@pytest.mark.parametrize("e", [2, 4])
@pytest.mark.parametrize(("kind", "fields"), CASES, ids=[kind for kind, _ in CASES])
def test_a_layer_saves_what_the_formula_says(kind: str, fields: dict[str, Any], e: int) -> None:
    attention = "eager" if kind in ("gemma2", "gpt_oss") else "sdpa"
    counted = saved(kind, fields, 3, e, attention) - saved(kind, fields, 2, e, attention)
    expected = layer_bytes(facts(kind, fields), MicroBatchShape(64, 32, e, attention))
    assert counted == pytest.approx(expected, rel=0 if kind in _TO_THE_BYTE else 0.01)


def test_eager_attention_of_llama_keeps_the_softmax() -> None:
    counted = saved("llama", _KV, 3, 2, "eager") - saved("llama", _KV, 2, 2, "eager")
    assert counted == layer_bytes(facts("llama", _KV), MicroBatchShape(64, 32, 2, "eager"))


@pytest.mark.parametrize("e", [2, 4])
def test_the_head_of_llama(e: int) -> None:
    """Everything but the layers: the head and once per model cos and sin (2 x sequence x head dimension)."""
    two, three = saved("llama", _KV, 2, e, "sdpa"), saved("llama", _KV, 3, e, "sdpa")
    rest = two - 2 * (three - two) - 2 * 32 * 16 * e
    assert rest == pytest.approx(head_bytes(facts("llama", _KV), MicroBatchShape(64, 32, e)), abs=64 * 8 + 16)


def test_checkpointing_keeps_the_input_of_a_layer() -> None:
    counted = saved("llama", _KV, 3, 2, "sdpa", True) - saved("llama", _KV, 2, 2, "sdpa", True)
    assert counted == checkpointed_input_bytes(facts("llama", _KV), MicroBatchShape(64, 32, 2))
