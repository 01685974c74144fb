# SPDX-License-Identifier: Apache-2.0
"""Well-known models as their published configurations. Parameter counts are never stored: they are computed.

A folder or the local Hugging Face cache wins over this list, since a run trains that one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.facts.recent_model_catalogue import LANGUAGE_PART_ONLY, RECENT


def _config(
    kind: str, hidden: int, layers: int, heads: int, kv: int, intermediate: int, vocab: int, **rest: Any
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        **rest,
    }


_TIED = {"tie_word_embeddings": True}
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
_MISTRAL_NEMO = _config("mistral", 5120, 40, 32, 8, 14336, 131072, head_dim=128)
_MISTRAL_24B = _config("mistral", 5120, 40, 32, 8, 32768, 131072, head_dim=128)
_MIXTRAL_8X7B = _config("mixtral", 4096, 32, 32, 8, 14336, 32000)
_MIXTRAL_8X22B = _config("mixtral", 6144, 56, 48, 8, 16384, 32000)
_QWEN25_05B = _config("qwen2", 896, 24, 14, 2, 4864, 151936, **_TIED)
_QWEN25_15B = _config("qwen2", 1536, 28, 12, 2, 8960, 151936, **_TIED)
_QWEN25_3B = _config("qwen2", 2048, 36, 16, 2, 11008, 151936, **_TIED)
_QWEN25_7B = _config("qwen2", 3584, 28, 28, 4, 18944, 152064)
_QWEN25_14B = _config("qwen2", 5120, 48, 40, 8, 13824, 152064)
_QWEN25_32B = _config("qwen2", 5120, 64, 40, 8, 27648, 152064)
_QWEN25_72B = _config("qwen2", 8192, 80, 64, 8, 29568, 152064)
_QWEN3_06B = _config("qwen3", 1024, 28, 16, 8, 3072, 151936, **_TIED)
_QWEN3_17B = _config("qwen3", 2048, 28, 16, 8, 6144, 151936, **_TIED)
_QWEN3_4B = _config("qwen3", 2560, 36, 32, 8, 9728, 151936, **_TIED)
_QWEN3_8B = _config("qwen3", 4096, 36, 32, 8, 12288, 151936)
_QWEN3_14B = _config("qwen3", 5120, 40, 40, 8, 17408, 151936)
_QWEN3_32B = _config("qwen3", 5120, 64, 64, 8, 25600, 151936)
_QWEN3_30B = _config("qwen3_moe", 2048, 48, 32, 4, 6144, 151936, head_dim=128, moe_intermediate_size=768)
_QWEN3_235B = _config("qwen3_moe", 4096, 94, 64, 4, 12288, 151936, head_dim=128, moe_intermediate_size=1536)
_GEMMA_2B = _config("gemma", 2048, 18, 8, 1, 16384, 256000)
_GEMMA_7B = _config("gemma", 3072, 28, 16, 16, 24576, 256000)
_GEMMA2_2B = _config("gemma2", 2304, 26, 8, 4, 9216, 256000, head_dim=256)
_GEMMA2_9B = _config("gemma2", 3584, 42, 16, 8, 14336, 256000, head_dim=256)
_GEMMA2_27B = _config("gemma2", 4608, 46, 32, 16, 36864, 256000, head_dim=128)
_GEMMA3_1B = _config("gemma3_text", 1152, 26, 4, 1, 6912, 262144, head_dim=256)
_SIGLIP = {
    "hidden_size": 1152,
    "num_hidden_layers": 27,
    "intermediate_size": 4304,
    "image_size": 896,
    "patch_size": 14,
    "vision_use_head": False,
}


def _gemma3(hidden: int, layers: int, heads: int, kv: int, intermediate: int, head_dim: int) -> dict[str, Any]:
    text = _config("gemma3_text", hidden, layers, heads, kv, intermediate, 262208, head_dim=head_dim)
    return {"model_type": "gemma3", "text_config": text, "vision_config": _SIGLIP}


_GEMMA3_4B = _gemma3(2560, 34, 8, 4, 10240, 256)
_GEMMA3_12B = _gemma3(3840, 48, 16, 8, 15360, 256)
_GEMMA3_27B = _gemma3(5376, 62, 32, 16, 21504, 128)
_PHI2 = _config("phi", 2560, 32, 32, 32, 10240, 51200)
_PHI3_MINI = _config("phi3", 3072, 32, 32, 32, 8192, 32064)
_PHI3_MEDIUM = _config("phi3", 5120, 40, 40, 10, 17920, 32064)
_PHI4 = _config("phi3", 5120, 40, 40, 10, 17920, 100352)
_PHI4_MINI = _config("phi3", 3072, 32, 24, 8, 8192, 200064, **_TIED)
_GPT_OSS_20B = _config("gpt_oss", 2880, 24, 64, 8, 2880, 201088, num_local_experts=32)
_GPT_OSS_120B = _config("gpt_oss", 2880, 36, 64, 8, 2880, 201088, num_local_experts=128)
_DEEPSEEK_V3 = {"model_type": "deepseek_v3"}
_DEEPSEEK_V2 = _config(
    "deepseek_v2",
    5120,
    60,
    128,
    128,
    12288,
    102400,
    n_routed_experts=160,
    num_experts_per_tok=6,
    moe_intermediate_size=1536,
    first_k_dense_replace=1,
)
_DEEPSEEK_V2_LITE = _config(
    "deepseek_v2",
    2048,
    27,
    16,
    16,
    10944,
    102400,
    q_lora_rank=None,
    num_experts_per_tok=6,
    moe_intermediate_size=1408,
    first_k_dense_replace=1,
)
_FALCON_40B = {
    "model_type": "falcon",
    "hidden_size": 8192,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
}


def _pythia(hidden: int, layers: int, heads: int, vocab: int) -> dict[str, Any]:
    return _config("gpt_neox", hidden, layers, heads, heads, 4 * hidden, vocab)


_OLDER: dict[str, Mapping[str, Any]] = {
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
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _config("llama", 2048, 22, 32, 4, 5632, 32000),
    "HuggingFaceTB/SmolLM2-135M": _config("llama", 576, 30, 9, 3, 1536, 49152, **_TIED),
    "HuggingFaceTB/SmolLM2-360M": _config("llama", 960, 32, 15, 5, 2560, 49152, **_TIED),
    "HuggingFaceTB/SmolLM2-1.7B": _config("llama", 2048, 24, 32, 32, 8192, 49152, **_TIED),
    "mistralai/Mistral-7B-v0.1": _MISTRAL_7B,
    "mistralai/Mistral-7B-v0.3": _MISTRAL_7B_V3,
    "mistralai/Mistral-7B-Instruct-v0.3": _MISTRAL_7B_V3,
    "mistralai/Mistral-Nemo-Base-2407": _MISTRAL_NEMO,
    "mistralai/Mistral-Small-24B-Base-2501": _MISTRAL_24B,
    "mistralai/Mistral-Large-Instruct-2407": _config("mistral", 12288, 88, 96, 8, 28672, 32768),
    "mistralai/Mixtral-8x7B-v0.1": _MIXTRAL_8X7B,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": _MIXTRAL_8X7B,
    "mistralai/Mixtral-8x22B-v0.1": _MIXTRAL_8X22B,
    "Qwen/Qwen2-7B": _QWEN25_7B,
    "Qwen/Qwen2-72B": _QWEN25_72B,
    "Qwen/Qwen2.5-0.5B": _QWEN25_05B,
    "Qwen/Qwen2.5-1.5B": _QWEN25_15B,
    "Qwen/Qwen2.5-3B": _QWEN25_3B,
    "Qwen/Qwen2.5-7B": _QWEN25_7B,
    "Qwen/Qwen2.5-7B-Instruct": _QWEN25_7B,
    "Qwen/Qwen2.5-14B": _QWEN25_14B,
    "Qwen/Qwen2.5-32B": _QWEN25_32B,
    "Qwen/Qwen2.5-72B": _QWEN25_72B,
    "Qwen/Qwen2.5-72B-Instruct": _QWEN25_72B,
    "Qwen/Qwen3-0.6B": _QWEN3_06B,
    "Qwen/Qwen3-1.7B": _QWEN3_17B,
    "Qwen/Qwen3-4B": _QWEN3_4B,
    "Qwen/Qwen3-8B": _QWEN3_8B,
    "Qwen/Qwen3-14B": _QWEN3_14B,
    "Qwen/Qwen3-32B": _QWEN3_32B,
    "Qwen/Qwen1.5-MoE-A2.7B": {"model_type": "qwen2_moe"},
    "Qwen/Qwen3-30B-A3B": _QWEN3_30B,
    "Qwen/Qwen3-235B-A22B": _QWEN3_235B,
    "google/gemma-2b": _GEMMA_2B,
    "google/gemma-7b": _GEMMA_7B,
    "google/gemma-2-2b": _GEMMA2_2B,
    "google/gemma-2-9b": _GEMMA2_9B,
    "google/gemma-2-27b": _GEMMA2_27B,
    "google/gemma-3-1b-pt": _GEMMA3_1B,
    "google/gemma-3-4b-pt": _GEMMA3_4B,
    "google/gemma-3-12b-pt": _GEMMA3_12B,
    "google/gemma-3-27b-pt": _GEMMA3_27B,
    "microsoft/phi-2": _PHI2,
    "microsoft/Phi-3-mini-4k-instruct": _PHI3_MINI,
    "microsoft/Phi-3.5-mini-instruct": _PHI3_MINI,
    "microsoft/Phi-3-medium-4k-instruct": _PHI3_MEDIUM,
    "microsoft/phi-4": _PHI4,
    "microsoft/Phi-4-mini-instruct": _PHI4_MINI,
    "openai-community/gpt2": {"model_type": "gpt2"},
    "openai-community/gpt2-medium": {"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16},
    "openai-community/gpt2-large": {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20},
    "openai-community/gpt2-xl": {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "EleutherAI/pythia-160m": _pythia(768, 12, 12, 50304),
    "EleutherAI/pythia-410m": _pythia(1024, 24, 16, 50304),
    "EleutherAI/pythia-1b": _pythia(2048, 16, 8, 50304),
    "EleutherAI/pythia-1.4b": _pythia(2048, 24, 16, 50304),
    "EleutherAI/pythia-2.8b": _pythia(2560, 32, 32, 50304),
    "EleutherAI/pythia-6.9b": _pythia(4096, 32, 32, 50432),
    "EleutherAI/pythia-12b": _pythia(5120, 36, 40, 50688),
    "EleutherAI/gpt-neox-20b": {"model_type": "gpt_neox"},
    "tiiuae/falcon-7b": {"model_type": "falcon"},
    "tiiuae/falcon-40b": _FALCON_40B,
    "openai/gpt-oss-20b": _GPT_OSS_20B,
    "openai/gpt-oss-120b": _GPT_OSS_120B,
    "deepseek-ai/DeepSeek-V2-Lite": _DEEPSEEK_V2_LITE,
    "deepseek-ai/DeepSeek-V2": _DEEPSEEK_V2,
    "deepseek-ai/DeepSeek-V3": _DEEPSEEK_V3,
    "deepseek-ai/DeepSeek-R1": _DEEPSEEK_V3,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": _LLAMA31_70B,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": _QWEN25_32B,
}
CATALOGUE: Mapping[str, Mapping[str, Any]] = {
    **_OLDER,
    **{name: _OLDER[config] if isinstance(config, str) else config for name, config in RECENT.items()},
}
_STAGE_WORDS = frozenset("instruct chat it pt base hf thinking meta fp8 bf16 sft dpo".split())
"""Parts of a name that say how a model was trained further, or how it is stored, not what its sizes are."""
_VERSION = re.compile(r"v0\.\d|\d{4}")


def _drop_words(name: str, versions: bool = False) -> str:
    """A name without its owner and the words for stages of training; with `versions` also without `v0.1` and `2507`."""
    words = name.lower().rpartition("/")[2].split("-")
    return "-".join(w for w in words if w not in _STAGE_WORDS and not (versions and _VERSION.fullmatch(w)))


def _index(versions: bool) -> dict[str, Mapping[str, Any]]:
    """Configurations by their shortened names, where all the models of one name have the same."""
    index: dict[str, Mapping[str, Any] | None] = {}
    for name, config in CATALOGUE.items():
        key = _drop_words(name, versions)
        index[key] = config if index.get(key, config) == config else None
    return {key: config for key, config in index.items() if config is not None}


_BY_NAME = {name.lower(): config for name, config in CATALOGUE.items()}
_BY_NAME |= {name.split("/", 1)[1].lower(): config for name, config in CATALOGUE.items()}
_BY_SIZES = _index(versions=False)
_BY_SIZES_OF_ANY_VERSION = _index(versions=True)
_OWNERS = frozenset(name.split("/", 1)[0].lower() for name in CATALOGUE)
_SHORT_NAMES = {
    "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "llama-4-maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "command-r": "CohereLabs/c4ai-command-r-v01",
    "command-r-plus": "CohereLabs/c4ai-command-r-plus",
    "command-r7b": "CohereLabs/c4ai-command-r7b-12-2024",
    "command-a": "CohereLabs/c4ai-command-a-03-2025",
    "gpt-3": "openai/gpt3-175b",
    "gpt3": "openai/gpt3-175b",
    "bloom-176b": "bigscience/bloom",
    "minimax-m2": "MiniMaxAI/MiniMax-M2",
}


def catalogue_config(name: str) -> Mapping[str, Any] | None:
    """The configuration of a model by its Hub name, with or without its owner; case does not matter, nor do words such
    as `Instruct`, where all models of the name that is left have the same sizes.
    """
    lower_name = name.lower()[:200]
    owner, _, short_name = lower_name.rpartition("/")
    if lower_name in _BY_NAME:
        return _BY_NAME[lower_name]
    if owner and owner not in _OWNERS:
        return None
    if short_name in _SHORT_NAMES:
        return CATALOGUE[_SHORT_NAMES[short_name]]
    return _BY_SIZES.get(_drop_words(short_name)) or _BY_SIZES_OF_ANY_VERSION.get(_drop_words(short_name, True))


def is_language_part_only(name: str) -> bool:
    """Does the catalogue count the language model alone, of a repository with a vision tower?"""
    short_name = name.lower().rpartition("/")[2]
    return any(short_name.startswith(start.lower().rpartition("/")[2]) for start in LANGUAGE_PART_ONLY)


def closest_name(name: str) -> str | None:
    """The most similar name of the catalogue, if any is similar; of equally likely ones that with the same numbers."""
    plain_name = name.lower()[:200]
    import difflib

    names = difflib.get_close_matches(plain_name, _BY_NAME, n=12, cutoff=0.75)
    if "/" not in plain_name:
        names += difflib.get_close_matches(f"/{plain_name}", _BY_NAME, n=3, cutoff=0.75)
    numbers = re.findall(r"\d+(?:\.\d+)?", plain_name)
    return max(
        names,
        key=lambda known: (
            sum(number in re.findall(r"\d+(?:\.\d+)?", known) for number in numbers),
            difflib.SequenceMatcher(None, plain_name, known).ratio(),
        ),
        default=None,
    )
