# SPDX-License-Identifier: Apache-2.0
"""Models that keep the documents of a packed row apart, and models that do not. Measured, not read."""

from __future__ import annotations

MIXES_PACKED_DOCUMENTS = frozenset(
    {
        "afmoe",
        "bamba",
        "bloom",
        "deepseek_v4",
        "falcon_h1",
        "falcon_mamba",
        "gpt_oss",
        "granitemoehybrid",
        "jamba",
        "kimi_linear",
        "lfm3",
        "mamba",
        "mamba2",
        "minimax",
        "mpt",
        "nemotron_h",
        "olmo_hybrid",
        "opt",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
    }
)
"""`model_type`s whose logits for a document change with the document before it in the row, although position ids
restart: seen on tiny random models in batches of several rows, with transformers 5.23 and 5.24
(`harness/runtime/model_behavior.py`). Where transformers is installed, types of neither table are asked.
"""

SEPARATES_PACKED_DOCUMENTS = frozenset(
    {
        "arcee",
        "cohere",
        "cohere2",
        "deepseek_v3",
        "deepseek_v32",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone4",
        "falcon",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma3n_text",
        "gemma4",
        "gemma4_text",
        "glm",
        "glm4",
        "glm4_moe",
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "granite",
        "granitemoe",
        "granitemoeshared",
        "internlm3",
        "llama",
        "llama4_text",
        "minimax_m2",
        "ministral3",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "phi",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "solar_open",
        "stablelm",
        "starcoder2",
    }
)
"""`model_type`s whose logits do not, in the same comparison (within 1e-6)."""

TAKES_BORDERS = ("sdpa_varlen", "flash_attention_2", "flash_attention_3")
"""Attention that gets the borders of packed documents instead of a mask."""

SEPARATES_BY_BORDERS = frozenset(
    {
        "cohere",
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "ernie4_5",
        "gemma",
        "gemma3_text",
        "glm",
        "glm4",
        "gpt2",
        "gpt_neox",
        "gptj",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "nemotron",
        "olmo",
        "olmo2",
        "olmo3",
        "persimmon",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)
"""`model_type`s whose logits for a document are those of the document alone by `sdpa_varlen` (transformers 5.24, within
1e-6, tests/training/models/test_packed_families.py). Of the others, Gemma-2 and GPT-Neo have no `sdpa`, and Llama-4
attends in chunks.
"""
