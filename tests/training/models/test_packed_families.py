# SPDX-License-Identifier: Apache-2.0
"""Families by `sdpa_varlen`: logits of packed documents are those of each by itself; of other families a run is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.errors import UserError
from harness.facts import model_table
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.runtime.micro_batch import MicroBatch, find_borders
from harness.runtime.models import sdpa_varlen
from harness.runtime.models.packed_attention import install_packed_attention
from harness.spec.run_spec import RunSpec

LENGTHS = ((11, 1, 9, 3), (6, 18))
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
_ROUTED = {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
_TWO_KINDS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
_DEEPSEEK = {
    **_LATENT,
    "n_routed_experts": 4,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
FIELDS: dict[str, dict[str, Any]] = {
    "cohere2": _TWO_KINDS,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "gemma": {"head_dim": 8},
    "gemma3_text": {**_TWO_KINDS, "head_dim": 8},
    "glm": {"head_dim": 8, "pad_token_id": 0},
    "glm4": {"head_dim": 8, "pad_token_id": 0},
    "gpt2": _GPT2,
    "gptj": _GPT2,
    "ministral": {"head_dim": 8, "sliding_window": 5},
    "mistral": {"sliding_window": 5},
    "mixtral": {"num_local_experts": 4, "sliding_window": 5},
    "olmo3": {"sliding_window": 5},
    "persimmon": {"num_key_value_heads": 4},
    "phi3": {"pad_token_id": 0, "sliding_window": 5},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen2_moe": {**_ROUTED, "shared_expert_intermediate_size": 16},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {**_ROUTED, "head_dim": 8},
    "seed_oss": {"head_dim": 8},
    "smollm3": {"pad_token_id": 0},
    "starcoder2": {"sliding_window": 5},
}


COMPARED = sorted({*FIELDS, "llama", "olmo2", "granite", "stablelm", "phi", "nemotron"})


def test_the_table_has_them_all() -> None:
    assert [family for family in COMPARED if not model_table.holds(family, "borders")] == []


def packed_run() -> ResolvedRun:
    return resolve_run(
        RunSpec.model_validate(
            {"model": {"config": {}, "attn_implementation": "sdpa_varlen"}, "data": {"packing": True}}
        )
    )


def make_model(family: str, attention: str, **fields: Any) -> Any:
    sdpa_varlen.register_attention()
    torch.manual_seed(0)
    sizes = {"vocab_size": 64} if FIELDS.get(family) is _GPT2 else SIZES
    config = AutoConfig.for_model(family, **{**sizes, **FIELDS.get(family, {}), **fields})
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()


@pytest.mark.parametrize("family", COMPARED)
def test_packed_documents_have_the_logits_that_they_have_alone(family: str) -> None:
    ids = torch.randint(3, 64, (2, sum(LENGTHS[0])), generator=torch.Generator().manual_seed(1))
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in LENGTHS])
    before = ALL_ATTENTION_FUNCTIONS._local_mapping.copy()
    model = make_model(family, "sdpa_varlen")
    packed = install_packed_attention(model, packed_run())
    assert packed is not None
    try:
        batch = MicroBatch(ids, ids, positions, document_borders=find_borders(positions))
        packed.start_forward(batch, torch.device("cpu"))
        with torch.no_grad():
            together = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        packed.check_layers()
    finally:
        ALL_ATTENTION_FUNCTIONS._local_mapping = before
    other = make_model(family, "eager")
    other.load_state_dict(model.state_dict())
    for row, lengths in enumerate(LENGTHS):
        for part, logits in zip(ids[row].split(lengths), together[row].split(lengths), strict=True):
            with torch.no_grad():
                alone = other(input_ids=part[None], use_cache=False).logits[0]
            torch.testing.assert_close(logits, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "fields", "words"),
    [
        ("llama4_text", {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 64}, "attend in chunks"),
    ],
)
def test_other_families_are_refused(family: str, fields: dict[str, Any], words: str) -> None:
    model = make_model(family, "sdpa_varlen", pad_token_id=0, **fields)
    with pytest.raises(UserError, match=words):
        install_packed_attention(model, packed_run())
