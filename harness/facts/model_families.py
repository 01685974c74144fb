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
    `counted_only`: its parameters are those of `transformers`, and nothing of it was run here.
    """

    build: Callable[[ConfigFields], Parts]
    defaults: Mapping[str, Any]
    layer_path: str
    aliases: Mapping[str, str]
    text_config_key: str = ""
    counted_only: bool = False


def _counted(
    build: Callable[[ConfigFields], Parts],
    defaults: Mapping[str, Any],
    aliases: Mapping[str, str] | None = None,
    layer_path: str = "model.layers",
    text_config_key: str = "",
) -> Family:
    return Family(build, defaults, layer_path, aliases or {}, text_config_key, counted_only=True)


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
_SMOLLM3 = _defaults(2048, 36, 16, 4, 11008, 128256, attention_bias=False, mlp_bias=False, tie_word_embeddings=True)
_SEED_OSS = _defaults(
    4096, 64, 80, 8, 27648, 155136, head_dim=128, attention_bias=True, attention_out_bias=False, mlp_bias=False
)
_OLMO2 = _defaults(4096, 32, 32, None, 11008, 50304, attention_bias=False)
_HUNYUAN = _defaults(4096, 32, 32, None, 11008, 290943, head_dim=None, attention_bias=False)
_COHERE = _defaults(8192, 40, 64, None, 22528, 256000, attention_bias=False, tie_word_embeddings=True)
_NEMOTRON = _defaults(6144, 32, 48, None, 24576, 256000, head_dim=None, attention_bias=False, mlp_bias=False)
_ERNIE = _defaults(1024, 18, 16, 2, 3072, 103424, head_dim=128, use_bias=False, tie_word_embeddings=True)
_BLOOM = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 250880,
    "tie_word_embeddings": True,
}
_BLOOM_NAMES = {"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
_OPT = {
    **_defaults(768, 12, 12, None, 3072, 50272, tie_word_embeddings=True),
    "max_position_embeddings": 2048,
}
_MPT = {
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "vocab_size": 50368,
    "tie_word_embeddings": True,
}
_MPT_NAMES = {"d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
_GLM4_MOE = {
    **_defaults(4096, 46, 96, 8, 10944, 151552, attention_bias=False, num_local_experts=128, num_experts_per_tok=8),
    "moe_intermediate_size": 1408,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "use_qk_norm": False,
}
_DEEPSEEK_V32 = {**_DEEPSEEK_V3, "index_head_dim": 128, "index_n_heads": 64}
_MINIMAX_M2 = _defaults(3072, 62, 48, 8, 1536, 200064, head_dim=128, num_local_experts=256, num_experts_per_tok=8)
_ERNIE_MOE = {
    **_defaults(2560, 28, 20, 4, 12288, 103424, use_bias=False, tie_word_embeddings=True),
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1536,
    "n_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
}
_ERNIE_MOE_NAMES = {
    "moe_num_experts": "num_local_experts",
    "moe_k": "num_experts_per_tok",
    "moe_num_shared_experts": "n_shared_experts",
}
_LLAMA4 = {
    **_defaults(5120, 48, 40, 8, 16384, 202048, head_dim=128, attention_bias=False),
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8192,
    "n_shared_experts": 1,
    "interleave_moe_layer_step": 1,
    "moe_layers": None,
}
_LLAMA4_NAMES = {"intermediate_size": "moe_intermediate_size", "intermediate_size_mlp": "intermediate_size"}
_QWEN3_NEXT = {
    **_defaults(2048, 48, 16, 2, 5632, 151936, head_dim=256, attention_bias=False),
    **_QWEN_MOE,
    "num_local_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
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
    "smollm3": _counted(dense.llama, _SMOLLM3),
    "granite": _counted(dense.llama, {**_LLAMA, "head_dim": None}),
    "seed_oss": _counted(dense.seed_oss, _SEED_OSS),
    "olmo2": _counted(dense.olmo2, _OLMO2),
    "olmo3": _counted(dense.olmo2, _OLMO2),
    "hunyuan_v1_dense": _counted(dense.hunyuan, _HUNYUAN),
    "cohere": _counted(dense.cohere, {**_COHERE, "use_qk_norm": False}),
    "cohere2": _counted(dense.cohere, _COHERE),
    "nemotron": _counted(dense.nemotron, _NEMOTRON),
    "ernie4_5": _counted(dense.ernie, _ERNIE),
    "bloom": _counted(dense.bloom, _BLOOM, _BLOOM_NAMES, "transformer.h"),
    "opt": _counted(dense.opt, _OPT, {"ffn_dim": "intermediate_size"}, "model.decoder.layers"),
    "mpt": _counted(dense.mpt, _MPT, _MPT_NAMES, "transformer.blocks"),
    "glm4_moe": _counted(moe.glm4_moe, _GLM4_MOE, _ROUTED),
    "deepseek_v32": _counted(moe.deepseek_v32, _DEEPSEEK_V32, _ROUTED),
    "minimax_m2": _counted(moe.minimax_m2, _MINIMAX_M2),
    "ernie4_5_moe": _counted(moe.ernie_moe, _ERNIE_MOE, _ERNIE_MOE_NAMES),
    "qwen3_next": _counted(moe.qwen3_next, _QWEN3_NEXT, _EXPERTS),
    "llama4_text": _counted(moe.llama4, _LLAMA4, _LLAMA4_NAMES),
    "llama4": _counted(moe.llama4, _LLAMA4, _LLAMA4_NAMES, text_config_key="text_config"),
}
SAME_FAMILY: Mapping[str, str] = {"kimi_k2": "deepseek_v3"}
"""A `model_type` that names another family's modules."""
