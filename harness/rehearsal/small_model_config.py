# SPDX-License-Identifier: Apache-2.0
"""A model's configuration that is narrower, for a rehearsal.

Has the key names of `transformers` configurations. Does not choose the size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.facts.layer_keys import LAYER_KEYS, find_key

HIDDEN_SIZE_KEYS = ("hidden_size", "n_embd", "d_model")
HEAD_KEYS = ("num_attention_heads", "n_head")
KV_HEAD_KEYS = ("num_key_value_heads",)
MLP_WIDTH_KEYS = (
    "intermediate_size",
    "n_inner",
    "ffn_hidden_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)
_NESTED_KEYS = ("text_config", "vision_config")
_LATENT_KEY = "kv_lora_rank"
HEAD_DIM = 32
"""Width of a head of a narrowed model."""
MIN_VOCAB_SIZE = 512
"""Enough for the 258 tokens of the byte tokenizer."""


def find_value(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The value under the first of the names that the configuration has."""
    name = find_key(config, names)
    return None if name is None else int(config[name])


def unsupported_reason(config: Mapping[str, Any], *, narrow: bool) -> str | None:
    """The reason why this model cannot be made smaller; None where it can."""
    if any(isinstance(config.get(key), Mapping) for key in _NESTED_KEYS):
        return "its configuration has parts for text and images, which cannot be shrunk"
    if find_key(config, LAYER_KEYS) is None:
        return f"its configuration contains none of {', '.join(f'`{name}`' for name in LAYER_KEYS)}"
    if narrow and (find_key(config, HIDDEN_SIZE_KEYS) is None or find_key(config, HEAD_KEYS) is None):
        return "its configuration has no known name for width and heads"
    if narrow and _LATENT_KEY in config:
        return "the widths of latent attention cannot be shrunk"
    return None


def reduce_width(config: Mapping[str, Any], hidden: int, degree: int) -> dict[str, Any]:
    """The configuration with a hidden size of `hidden` at most. Heads have a width of 32, and as many query heads share
    a key-value head. Widths of the MLP and the vocabulary shrink by the same factor, to multiples of 64. The number of
    heads is a multiple of `degree`, the number of ranks that share them.
    """
    name = find_key(config, HIDDEN_SIZE_KEYS)
    if name is None or int(config[name]) <= hidden:
        return dict(config)
    factor = hidden / int(config[name])
    small_config = {**config, name: hidden, **_reduce_heads(config, hidden, degree)}
    small_config |= {
        key: max(64, _round_up(config[key] * factor)) for key in MLP_WIDTH_KEYS if isinstance(config.get(key), int)
    }
    vocab_size = config.get("vocab_size")
    if isinstance(vocab_size, int):
        small_config["vocab_size"] = min(vocab_size, max(MIN_VOCAB_SIZE, _round_up(vocab_size * factor)))
    # The ids are those of the larger vocabulary.
    return {key: value for key, value in small_config.items() if not key.endswith("token_id")}


def _reduce_heads(config: Mapping[str, Any], hidden: int, degree: int) -> dict[str, int]:
    key, heads = find_key(config, HEAD_KEYS), max(degree, hidden // HEAD_DIM)
    if key is None:
        return {}
    sizes = {key: heads}
    sizes |= {
        name: _reduce_kv_heads(config, key, heads, degree) for name in KV_HEAD_KEYS if config.get(name) is not None
    }
    return sizes | ({"head_dim": HEAD_DIM} if "head_dim" in config else {})


def _reduce_kv_heads(config: Mapping[str, Any], key: str, heads: int, degree: int) -> int:
    """Key-value heads: as many query heads share one, as far as `degree` allows."""
    kv_heads = find_value(config, KV_HEAD_KEYS) or int(config[key])
    target = max(degree, round(heads * kv_heads / int(config[key])))
    return next(n for n in range(max(1, target), heads + 1) if heads % n == 0 and n % degree == 0)


def _round_up(number: float, multiple: int = 64) -> int:
    return -(-int(number) // multiple) * multiple
