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
