# SPDX-License-Identifier: Apache-2.0
"""Small models that stand for the model of a spec. Imports no torch."""

from __future__ import annotations

from typing import Any

KEPT = (
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "tie_word_embeddings",
    "n_head",
    "n_layer",
    "num_local_experts",
    "num_experts_per_tok",
)
SMALL = ("hidden_size", "intermediate_size", "vocab_size", "n_embd")


def small(config: dict[str, Any]) -> dict[str, Any]:
    """A model of the same kind: counts as asked, widths only where they are small enough to train in no time."""
    kind = str(config.get("model_type", "llama"))
    fields = {k: config[k] for k in KEPT if k in config}
    fields |= {k: config[k] for k in SMALL if isinstance(config.get(k), int) and config[k] <= 512}
    heads = fields.get("num_attention_heads")
    if heads and "hidden_size" not in fields and 64 % heads:
        fields["hidden_size"] = heads * 16
    if fields.get("num_hidden_layers", 0) > 4:
        fields["num_hidden_layers"] = 2
    return {"kind": kind if kind in ("llama", "gpt2", "mixtral", "mlp", "pipe") else "llama", **fields}
