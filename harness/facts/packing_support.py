# SPDX-License-Identifier: Apache-2.0
"""Models that keep the documents of a packed row apart, and models that do not. Measured, not read."""

from __future__ import annotations

MIXES_PACKED_DOCUMENTS = frozenset({"bloom", "gpt_oss", "mamba", "mpt", "opt", "qwen3_next"})
"""`model_type`s whose logits for a document change with the document before it in the row, although position ids
restart: seen with transformers 5.23 on tiny random models, in batches of several rows, by `sdpa` where they have it and
by `eager`.
"""

SEPARATES_PACKED_DOCUMENTS = frozenset(
    {
        "cohere",
        "ernie4_5",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "granite",
        "llama",
        "llama4_text",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "stablelm",
        "starcoder2",
    }
)
"""`model_type`s whose logits do not, in the same comparison (within 1e-6)."""

TAKES_BORDERS = ("sdpa_varlen", "flash_attention_2", "flash_attention_3")
"""Attention that gets the borders of packed documents instead of a mask."""

SEPARATES_BY_BORDERS = SEPARATES_PACKED_DOCUMENTS - {"gemma2", "gpt_neo", "llama4_text"} | frozenset(
    {
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "glm",
        "glm4",
        "nemotron",
        "olmo3",
        "persimmon",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
    }
)
"""`model_type`s whose logits for a document are those of the document alone by `sdpa_varlen` (transformers 5.24, within
1e-6, tests/training/models/test_packed_families.py). Of the others, Gemma-2 and GPT-Neo have no `sdpa`, and Llama-4
attends in chunks.
"""
