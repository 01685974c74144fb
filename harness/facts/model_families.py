# SPDX-License-Identifier: Apache-2.0
"""The model families by `model_type`: the function that builds each one, and the defaults of `transformers`.

The functions are in `harness.facts.dense_model_families` and `harness.facts.moe_model_families`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.facts import dense_model_families as dense
from harness.facts import moe_model_families as moe
from harness.facts.model_parts import ConfigFields, Parts


class Family(NamedTuple):
    """The parts of a `model_type`: its function, the defaults of `transformers`, other names of keys.

    `text_config_key` names the part of the configuration that describes the language model, where it is nested.
    """

    build: Callable[[ConfigFields], Parts]
    defaults: Mapping[str, Any]
    layer_path: str
    aliases: Mapping[str, str]
    text_config_key: str = ""


def _defaults(
    hidden: int, layers: int, heads: int, kv: int | None, intermediate: int, vocab: int, **rest: Any
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        **rest,
    }


_LLAMA = _defaults(4096, 32, 32, None, 11008, 32000, head_dim=None, attention_bias=False, mlp_bias=False)
_MISTRAL = _defaults(4096, 32, 32, 8, 14336, 32000, head_dim=None)
_QWEN2 = _defaults(4096, 32, 32, 32, 22016, 151936)
_QWEN3 = _defaults(4096, 32, 32, 32, 22016, 151936, head_dim=128, attention_bias=False)
_PHI = _defaults(2048, 24, 32, None, 8192, 51200, qk_layernorm=False)
_PHI3 = _defaults(3072, 32, 32, None, 8192, 32064)
_GEMMA = _defaults(3072, 28, 16, 16, 24576, 256000, head_dim=256, attention_bias=False, tie_word_embeddings=True)
_GEMMA2 = _defaults(2304, 26, 8, 4, 9216, 256000, head_dim=256, attention_bias=False, tie_word_embeddings=True)
_GEMMA3 = {**_GEMMA2, "vocab_size": 262208}
_FALCON = {
    **_defaults(4544, 32, 71, None, 18176, 65024, tie_word_embeddings=True),
    "intermediate_size": None,
    "ffn_hidden_size": None,
    "bias": False,
    "multi_query": True,
    "parallel_attn": True,
    "new_decoder_architecture": False,
    "num_ln_in_parallel_attn": None,
}
_MIXTRAL = _defaults(4096, 32, 32, 8, 14336, 32000, head_dim=None, num_local_experts=8, num_experts_per_tok=2)
_QWEN_MOE = {"decoder_sparse_step": 1, "mlp_only_layers": None}
_QWEN2_MOE = {
    **_defaults(2048, 24, 16, 16, 5632, 151936, qkv_bias=True, num_local_experts=60, num_experts_per_tok=4),
    **_QWEN_MOE,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
_QWEN3_MOE = {
    **_defaults(2048, 24, 32, 4, 6144, 151936, attention_bias=False, num_local_experts=128, num_experts_per_tok=8),
    **_QWEN_MOE,
    "moe_intermediate_size": 768,
}
_GPT_OSS = {
    **_defaults(2880, 36, 64, 8, 2880, 201088, head_dim=64, attention_bias=True),
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}
_LATENT = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128}
_DEEPSEEK_V2 = {
    **_defaults(4096, 32, 32, None, 11008, 102400, attention_bias=False, num_local_experts=64, num_experts_per_tok=1),
    **_LATENT,
    "moe_intermediate_size": 1407,
    "n_shared_experts": 2,
    "first_k_dense_replace": 0,
}
_DEEPSEEK_V3 = {
    **_defaults(7168, 61, 128, 128, 18432, 129280, attention_bias=False, num_local_experts=256, num_experts_per_tok=8),
    **_LATENT,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
}
_GPT2 = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_inner": None,
    "tie_word_embeddings": True,
}
_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "max_position_embeddings": "n_positions",
}
_NEOX = {
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "vocab_size": 50432,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_experts": "num_local_experts"}
_ROUTED = {"n_routed_experts": "num_local_experts"}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(dense.llama, _LLAMA, "model.layers", {}),
    "mistral": Family(dense.mistral, _MISTRAL, "model.layers", {}),
    "qwen2": Family(dense.qwen2, _QWEN2, "model.layers", {}),
    "qwen3": Family(dense.qwen3, _QWEN3, "model.layers", {}),
    "phi": Family(dense.phi, _PHI, "model.layers", {}),
    "phi3": Family(dense.phi3, _PHI3, "model.layers", {}),
    "gemma": Family(dense.gemma, _GEMMA, "model.layers", {}),
    "gemma2": Family(dense.gemma2, _GEMMA2, "model.layers", {}),
    "gemma3_text": Family(dense.gemma3, _GEMMA3, "model.layers", {}),
    "gemma3": Family(dense.gemma3_with_images, _GEMMA3, "model.language_model.layers", {}, "text_config"),
    "falcon": Family(dense.falcon, _FALCON, "transformer.h", {"num_kv_heads": "num_key_value_heads"}),
    "gpt2": Family(dense.gpt2, _GPT2, "transformer.h", _GPT2_NAMES),
    "gpt_neox": Family(dense.gpt_neox, _NEOX, "gpt_neox.layers", {}),
    "mixtral": Family(moe.mixtral, _MIXTRAL, "model.layers", {}),
    "qwen2_moe": Family(moe.qwen2_moe, _QWEN2_MOE, "model.layers", _EXPERTS),
    "qwen3_moe": Family(moe.qwen3_moe, _QWEN3_MOE, "model.layers", _EXPERTS),
    "gpt_oss": Family(moe.gpt_oss, _GPT_OSS, "model.layers", {}),
    "deepseek_v2": Family(moe.deepseek, _DEEPSEEK_V2, "model.layers", _ROUTED),
    "deepseek_v3": Family(moe.deepseek, _DEEPSEEK_V3, "model.layers", _ROUTED),
}
