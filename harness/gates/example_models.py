# SPDX-License-Identifier: Apache-2.0
"""Models that several examples share, as the text that a page shows after `model.config:`."""

from __future__ import annotations

EXAMPLE_MODELS = {
    "llama-70b": """ \
{model_type: llama, vocab_size: 32000, hidden_size: 8192, intermediate_size: 28672, num_hidden_layers: 80,
         num_attention_heads: 64, num_key_value_heads: 8, max_position_embeddings: 4096}""",
    "llama-2-layers": """
  model_type: llama
  hidden_size: 2048
  intermediate_size: 5504
  num_hidden_layers: 2
  num_attention_heads: 16
  vocab_size: 32000""",
}
