# SPDX-License-Identifier: Apache-2.0
"""Models of 2025 and later, and those of families that are counted only, as their published configurations.

A text in the place of a configuration is the name of a model with the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TIED = {"tie_word_embeddings": True}


def _config(kind: str, sizes: tuple[int, int, int, int, int, int], **rest: Any) -> dict[str, Any]:
    """`sizes`: hidden, layers, heads, key-value heads, intermediate (0: by the family), vocabulary."""
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    values = {key: value for key, value in zip((*keys, "vocab_size"), sizes, strict=True) if value}
    return {"model_type": kind, **values, **rest}


def _experts(count: int, per_token: int, width: int) -> dict[str, Any]:
    return {"num_local_experts": count, "num_experts_per_tok": per_token, "moe_intermediate_size": width}


def _opt(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    sizes = {"ffn_dim": 4 * hidden, "word_embed_proj_dim": hidden}
    return {**_config("opt", (hidden, layers, heads, heads, 4 * hidden, 50272)), **sizes}


def _bloom(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return _config("bloom", (hidden, layers, heads, 0, 0, 250880))


def _gpt3(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 2048}


def _llama4(experts: int, every: int) -> dict[str, Any]:
    text = _config("llama4_text", (5120, 48, 40, 8, 8192, 202048), intermediate_size_mlp=16384)
    return text | {"num_local_experts": experts, "interleave_moe_layer_step": every}


_KIMI_K2 = _config("deepseek_v3", (7168, 61, 64, 64, 18432, 163840), **_experts(384, 8, 2048), first_k_dense_replace=1)
_MOONLIGHT = _config(
    "deepseek_v3",
    (2048, 27, 16, 16, 11264, 163840),
    **_experts(64, 6, 1408),
    q_lora_rank=None,
    n_shared_experts=2,
    first_k_dense_replace=1,
)
_GLM45 = _config(
    "glm4_moe",
    (5120, 92, 96, 8, 12288, 151552),
    **_experts(160, 8, 1536),
    head_dim=128,
    attention_bias=True,
    use_qk_norm=True,
    first_k_dense_replace=3,
)
_GLM45_AIR = _config(
    "glm4_moe", (4096, 46, 96, 8, 10944, 151552), **_experts(128, 8, 1408), head_dim=128, attention_bias=True
)
_QWEN3_CODER_480B = _config("qwen3_moe", (6144, 62, 96, 8, 8192, 151936), **_experts(160, 8, 2560), head_dim=128)
_QWEN_R1_15B = _config("qwen2", (1536, 28, 12, 2, 8960, 151936))
_OLMO2_1B = _config("olmo2", (2048, 16, 16, 16, 8192, 100352))
_OLMO2_7B = _config("olmo2", (4096, 32, 32, 32, 11008, 100352))
_OLMO2_13B = _config("olmo2", (5120, 40, 40, 40, 13824, 100352))
_OLMO2_32B = _config("olmo2", (5120, 64, 40, 8, 27648, 100352))
_OLMO3_7B = _config("olmo3", (4096, 32, 32, 32, 11008, 100278))
_OLMO3_32B = _config("olmo3", (5120, 64, 40, 8, 27648, 100278))
_MINISTRAL_8B = _config("mistral", (4096, 36, 32, 8, 12288, 131072), head_dim=128)

LANGUAGE_PART_ONLY = (
    "mistralai/Mistral-Small-3.1-24B",
    "mistralai/Mistral-Small-3.2-24B",
    "meta-llama/Llama-4",
    "Qwen/Qwen2.5-VL",
    "Qwen/Qwen3-VL",
)
"""Starts of the names of repositories that hold a vision tower, which is not counted."""

RECENT: Mapping[str, Mapping[str, Any] | str] = {
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": _llama4(16, 1),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": _llama4(128, 2),
    "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF": "meta-llama/Llama-3.1-70B",
    "nvidia/Llama-3.1-Nemotron-Nano-8B-v1": "meta-llama/Llama-3.1-8B",
    "nvidia/Nemotron-4-340B-Base": _config("nemotron", (18432, 96, 96, 8, 73728, 256000)),
    "nvidia/Minitron-4B-Base": _config("nemotron", (3072, 32, 24, 8, 9216, 256000), head_dim=128),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": "mistralai/Mistral-Small-24B-Base-2501",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "mistralai/Mistral-Small-24B-Base-2501",
    "mistralai/Magistral-Small-2506": "mistralai/Mistral-Small-24B-Base-2501",
    "mistralai/Devstral-Small-2507": "mistralai/Mistral-Small-24B-Base-2501",
    "mistralai/Mistral-Large-Instruct-2411": "mistralai/Mistral-Large-Instruct-2407",
    "mistralai/Ministral-8B-Instruct-2410": _MINISTRAL_8B,
    "Qwen/Qwen2.5-VL-3B-Instruct": "Qwen/Qwen2.5-3B",
    "Qwen/Qwen2.5-VL-7B-Instruct": "Qwen/Qwen2.5-7B",
    "Qwen/Qwen2.5-VL-32B-Instruct": "Qwen/Qwen2.5-32B",
    "Qwen/Qwen2.5-VL-72B-Instruct": "Qwen/Qwen2.5-72B",
    "Qwen/Qwen2.5-Coder-7B": "Qwen/Qwen2.5-7B",
    "Qwen/Qwen2.5-Coder-14B": "Qwen/Qwen2.5-14B",
    "Qwen/Qwen2.5-Coder-32B": "Qwen/Qwen2.5-32B",
    "Qwen/QwQ-32B": "Qwen/Qwen2.5-32B",
    "Qwen/Qwen3-VL-4B-Instruct": "Qwen/Qwen3-4B",
    "Qwen/Qwen3-VL-8B-Instruct": "Qwen/Qwen3-8B",
    "Qwen/Qwen3-VL-32B-Instruct": "Qwen/Qwen3-32B",
    "Qwen/Qwen3-VL-30B-A3B-Instruct": "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-VL-235B-A22B-Instruct": "Qwen/Qwen3-235B-A22B",
    "Qwen/Qwen3-4B-Instruct-2507": "Qwen/Qwen3-4B",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "Qwen/Qwen3-235B-A22B",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": _QWEN3_CODER_480B,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {"model_type": "qwen3_next"},
    "google/gemma-3-1b-it": "google/gemma-3-1b-pt",
    "google/gemma-3-4b-it": "google/gemma-3-4b-pt",
    "google/gemma-3-12b-it": "google/gemma-3-12b-pt",
    "google/gemma-3-27b-it": "google/gemma-3-27b-pt",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.1-Terminus": "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2-Exp": {"model_type": "deepseek_v32"},
    "deepseek-ai/DeepSeek-V3.2": {"model_type": "deepseek_v32"},
    "deepseek-ai/DeepSeek-V2.5": "deepseek-ai/DeepSeek-V2",
    "deepseek-ai/DeepSeek-Coder-V2-Base": "deepseek-ai/DeepSeek-V2",
    "deepseek-ai/DeepSeek-Coder-V2-Lite-Base": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "meta-llama/Llama-3.1-8B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _QWEN_R1_15B,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "Qwen/Qwen2.5-7B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "Qwen/Qwen2.5-14B",
    "zai-org/GLM-4.5": _GLM45,
    "zai-org/GLM-4.5-Air": _GLM45_AIR,
    "zai-org/GLM-4.6": _GLM45,
    "zai-org/GLM-4.7": _GLM45,
    "moonshotai/Kimi-K2-Instruct": _KIMI_K2,
    "moonshotai/Kimi-K2-Instruct-0905": _KIMI_K2,
    "moonshotai/Kimi-K2-Thinking": _KIMI_K2,
    "moonshotai/Moonlight-16B-A3B": _MOONLIGHT,
    "MiniMaxAI/MiniMax-M2": {"model_type": "minimax_m2"},
    "MiniMaxAI/MiniMax-M2.5": {"model_type": "minimax_m2"},
    "baidu/ERNIE-4.5-0.3B-PT": {"model_type": "ernie4_5"},
    "baidu/ERNIE-4.5-21B-A3B-PT": {"model_type": "ernie4_5_moe"},
    "allenai/OLMo-2-0425-1B": _OLMO2_1B,
    "allenai/OLMo-2-1124-7B": _OLMO2_7B,
    "allenai/OLMo-2-1124-13B": _OLMO2_13B,
    "allenai/OLMo-2-0325-32B": _OLMO2_32B,
    "allenai/Olmo-3-1025-7B": _OLMO3_7B,
    "allenai/Olmo-3-7B-Instruct": _OLMO3_7B,
    "allenai/Olmo-3-1125-32B": _OLMO3_32B,
    "allenai/Olmo-3.1-32B-Instruct": _OLMO3_32B,
    "HuggingFaceTB/SmolLM3-3B": {"model_type": "smollm3"},
    "ByteDance-Seed/Seed-OSS-36B-Base": _config("seed_oss", (5120, 64, 80, 8, 27648, 155136), head_dim=128),
    "tencent/Hunyuan-4B-Instruct": _config("hunyuan_v1_dense", (3072, 36, 32, 8, 8192, 120818), head_dim=128, **_TIED),
    "tencent/Hunyuan-7B-Instruct": _config("hunyuan_v1_dense", (4096, 32, 32, 8, 14336, 128167), head_dim=128, **_TIED),
    "ibm-granite/granite-3.3-2b-base": _config("granite", (2048, 40, 32, 8, 8192, 49159), **_TIED),
    "ibm-granite/granite-3.3-8b-base": _config("granite", (4096, 40, 32, 8, 12800, 49159), **_TIED),
    "CohereLabs/c4ai-command-r-v01": _config("cohere", (8192, 40, 64, 64, 22528, 256000)),
    "CohereLabs/c4ai-command-r-08-2024": _config("cohere", (8192, 40, 64, 8, 24576, 256000)),
    "CohereLabs/c4ai-command-r-plus": _config("cohere", (12288, 64, 96, 8, 33792, 256000), use_qk_norm=True),
    "CohereLabs/c4ai-command-r7b-12-2024": _config("cohere2", (4096, 32, 32, 8, 14336, 256000)),
    "CohereLabs/c4ai-command-a-03-2025": _config("cohere2", (12288, 64, 96, 8, 36864, 256000)),
    "facebook/opt-125m": _opt(768, 12, 12),
    "facebook/opt-1.3b": _opt(2048, 24, 32),
    "facebook/opt-2.7b": _opt(2560, 32, 32),
    "facebook/opt-6.7b": _opt(4096, 32, 32),
    "facebook/opt-13b": _opt(5120, 40, 40),
    "facebook/opt-30b": _opt(7168, 48, 56),
    "facebook/opt-66b": _opt(9216, 64, 72),
    "facebook/opt-175b": _opt(12288, 96, 96),
    "bigscience/bloom-560m": _bloom(1024, 24, 16),
    "bigscience/bloom-1b7": _bloom(2048, 24, 16),
    "bigscience/bloom-3b": _bloom(2560, 30, 32),
    "bigscience/bloom-7b1": _bloom(4096, 30, 32),
    "bigscience/bloom": _bloom(14336, 70, 112),
    "mosaicml/mpt-7b": _config("mpt", (4096, 32, 32, 0, 0, 50432)),
    "mosaicml/mpt-30b": _config("mpt", (7168, 48, 64, 0, 0, 50432)),
    "openai/gpt3-6.7b": _gpt3(4096, 32, 32),
    "openai/gpt3-13b": _gpt3(5120, 40, 40),
    "openai/gpt3-175b": _gpt3(12288, 96, 96),
}
