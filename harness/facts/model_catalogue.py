"""Well-known models, given as their published configurations. Parameter counts are never stored: they are computed.

A folder or the local Hugging Face cache wins over this list, since that is what will be trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _config(
    kind: str, hidden: int, layers: int, heads: int, kv: int, wide: int, vocab: int, **rest: Any
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": wide,
        "vocab_size": vocab,
        **rest,
    }


_TIED = {"tie_word_embeddings": True}
_MIXTRAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
_QWEN3_MOE = {"head_dim": 128, "num_local_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}

_LLAMA31_8B = _config("llama", 4096, 32, 32, 8, 14336, 128256)
_LLAMA31_70B = _config("llama", 8192, 80, 64, 8, 28672, 128256)
_LLAMA31_405B = _config("llama", 16384, 126, 128, 8, 53248, 128256)
_LLAMA32_1B = _config("llama", 2048, 16, 32, 8, 8192, 128256, head_dim=64, **_TIED)
_LLAMA32_3B = _config("llama", 3072, 28, 24, 8, 8192, 128256, head_dim=128, **_TIED)
_LLAMA2_7B = _config("llama", 4096, 32, 32, 32, 11008, 32000)
_LLAMA2_13B = _config("llama", 5120, 40, 40, 40, 13824, 32000)
_LLAMA2_70B = _config("llama", 8192, 80, 64, 8, 28672, 32000)
_MISTRAL_7B = _config("mistral", 4096, 32, 32, 8, 14336, 32000)
_MISTRAL_7B_V3 = _config("mistral", 4096, 32, 32, 8, 14336, 32768)
_MIXTRAL_8X7B = _config("mixtral", 4096, 32, 32, 8, 14336, 32000, **_MIXTRAL)
_QWEN25_05B = _config("qwen2", 896, 24, 14, 2, 4864, 151936, **_TIED)
_QWEN25_7B = _config("qwen2", 3584, 28, 28, 4, 18944, 152064)
_QWEN25_32B = _config("qwen2", 5120, 64, 40, 8, 27648, 152064)
_QWEN25_72B = _config("qwen2", 8192, 80, 64, 8, 29568, 152064)
_QWEN3_8B = _config("qwen3", 4096, 36, 32, 8, 12288, 151936, head_dim=128)
_QWEN3_32B = _config("qwen3", 5120, 64, 64, 8, 25600, 151936, head_dim=128)
_QWEN3_30B_A3B = _config("qwen3_moe", 2048, 48, 32, 4, 6144, 151936, **_QWEN3_MOE)
_GEMMA2_9B = _config("gemma2", 3584, 42, 16, 8, 14336, 256000, head_dim=256)
_GEMMA2_27B = _config("gemma2", 4608, 46, 32, 16, 36864, 256000, head_dim=128)
_PHI3_MINI = _config("phi3", 3072, 32, 32, 32, 8192, 32064)
_PHI4 = _config("phi3", 5120, 40, 40, 10, 17920, 100352)

CATALOGUE: Mapping[str, Mapping[str, Any]] = {
    "meta-llama/Llama-3.1-8B": _LLAMA31_8B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA31_8B,
    "meta-llama/Meta-Llama-3-8B": _LLAMA31_8B,
    "meta-llama/Llama-3.1-70B": _LLAMA31_70B,
    "meta-llama/Llama-3.1-70B-Instruct": _LLAMA31_70B,
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA31_70B,
    "meta-llama/Meta-Llama-3-70B": _LLAMA31_70B,
    "meta-llama/Llama-3.1-405B": _LLAMA31_405B,
    "meta-llama/Llama-3.1-405B-Instruct": _LLAMA31_405B,
    "meta-llama/Llama-3.2-1B": _LLAMA32_1B,
    "meta-llama/Llama-3.2-1B-Instruct": _LLAMA32_1B,
    "meta-llama/Llama-3.2-3B": _LLAMA32_3B,
    "meta-llama/Llama-3.2-3B-Instruct": _LLAMA32_3B,
    "meta-llama/Llama-2-7b-hf": _LLAMA2_7B,
    "meta-llama/Llama-2-7b-chat-hf": _LLAMA2_7B,
    "meta-llama/Llama-2-13b-hf": _LLAMA2_13B,
    "meta-llama/Llama-2-70b-hf": _LLAMA2_70B,
    "mistralai/Mistral-7B-v0.1": _MISTRAL_7B,
    "mistralai/Mistral-7B-v0.3": _MISTRAL_7B_V3,
    "mistralai/Mixtral-8x7B-v0.1": _MIXTRAL_8X7B,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": _MIXTRAL_8X7B,
    "Qwen/Qwen2.5-0.5B": _QWEN25_05B,
    "Qwen/Qwen2.5-7B": _QWEN25_7B,
    "Qwen/Qwen2.5-7B-Instruct": _QWEN25_7B,
    "Qwen/Qwen2.5-32B": _QWEN25_32B,
    "Qwen/Qwen2.5-72B": _QWEN25_72B,
    "Qwen/Qwen2.5-72B-Instruct": _QWEN25_72B,
    "Qwen/Qwen3-8B": _QWEN3_8B,
    "Qwen/Qwen3-32B": _QWEN3_32B,
    "Qwen/Qwen3-30B-A3B": _QWEN3_30B_A3B,
    "google/gemma-2-9b": _GEMMA2_9B,
    "google/gemma-2-27b": _GEMMA2_27B,
    "microsoft/Phi-3-mini-4k-instruct": _PHI3_MINI,
    "microsoft/phi-4": _PHI4,
    "openai-community/gpt2": {"model_type": "gpt2"},
    "openai-community/gpt2-xl": {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "EleutherAI/gpt-neox-20b": {"model_type": "gpt_neox"},
}

_BY_NAME = {name.lower(): config for name, config in CATALOGUE.items()}
_BY_NAME |= {name.split("/", 1)[1].lower(): config for name, config in CATALOGUE.items()}


def catalogued(name: str) -> Mapping[str, Any] | None:
    """The configuration of a model that is known by this Hub name, with or without its owner; case does not matter."""
    return _BY_NAME.get(name.lower())
