# SPDX-License-Identifier: Apache-2.0
"""Fields of small models, 64 wide with two layers, that tables of cases share."""

from __future__ import annotations

from typing import Any

TOKENS: dict[str, Any] = {"vocab_size": 320, "bos_token_id": 256, "eos_token_id": 256, "pad_token_id": 257}
"""Of the byte tokenizer."""
LLAMA: dict[str, Any] = {
    **TOKENS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GPT2: dict[str, Any] = {"model_type": "gpt2", **TOKENS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
"""Of GPT-2."""
