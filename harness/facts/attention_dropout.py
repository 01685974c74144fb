# SPDX-License-Identifier: Apache-2.0
"""Dropout of attention weights in a `transformers` configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_dropout")
_BY_DEFAULT = frozenset(
    """bert bert-generation big_bird biogpt camembert data2vec-text electra emu3 ernie git gpt-sw3 gpt2 gpt_bigcode
    gpt_neox_japanese megatron-bert openai-gpt plbart prophetnet roberta roberta-prelayernorm roc_bert roformer
    seed_oss xglm xlm xlm-roberta xlm-roberta-xl xmod""".split()
)
"""Model types that drop attention weights where their configuration says nothing (transformers 5.24)."""


def has_attention_dropout(config: Mapping[str, Any]) -> bool:
    """Does a model of this configuration drop attention weights in training?"""
    inner = config.get("text_config")
    merged = {**config, **inner} if isinstance(inner, Mapping) else config
    written = [merged[key] for key in _KEYS if key in merged]
    if written:
        return any(isinstance(value, int | float) and value > 0 for value in written)
    return merged.get("model_type") in _BY_DEFAULT
