# SPDX-License-Identifier: Apache-2.0
"""A tiny copy of any `transformers` configuration, by one rule for all families.

Layers: the shortest prefix that has two of each kind, by the lists, periods and indices that the configuration has.
Widths: heads become narrow and fewer, and every width shrinks by the same factors, so that what was divisible is.
Windows and chunks, of attention and of states, become shorter than a document of the probe, so that layers without them
show, and so do the tokens and blocks that attention chooses (`index_topk`), whose many heads stay: scores of few heads
tie. Kernels keep their sizes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MAX_LAYERS = 32
VOCAB_SIZE = 256
_MIN_HEAD_DIM = 8
_EXPERTS = 16

_WINDOW = re.compile(
    r"^((sliding_|local_|attention_)?window(_size)?|local_attention(_window_len)?|(attention_|mamba_)?chunk_size"
    r"|mamba_d_state|ssm_state_size|state_size)$"
)
_MIN_LONG_WINDOW, _SHORT_WINDOW = 128, 8
"""Tokens; those of towers for images are no longer than the first."""
_CHOICES = {"index_topk": 8, "index_block_size": 4, "index_topk_blocks": 2}
"""What attention chooses among: tokens, or blocks of tokens."""
_MANY_HEADS = 16
"""Of an indexer."""
_LAYERS = re.compile(r"^(num_hidden_layers|n_layers?|num_layers|(de|en)coder_layers|num_(de|en)coder_layers|depth)$")
_PERIOD = re.compile(r"period|interval|pattern|every|freq|_step")
_FIRST_LAYERS = re.compile(r"dense|first_k|start|offset")
_INDICES = re.compile(r"layer|indices|_idx|_ids")
_EXPERT_COUNT = re.compile(r"^(moe_)?(n|num)(_local|_routed|_sparse)?_experts$|^(moe_num|ffn_num)_experts$")
_PER_TOKEN = re.compile(r"experts?_per_tok|^(moe_|router_)?top_?k|experts_topk")
_HEADS = re.compile(
    r"heads?(_count)?$|^n_head|(^|_)n_groups$|_num_groups$|^o_groups$|^num_head|_n_heads?$|^num_query_groups$"
)
_HEAD_DIM = re.compile(r"head_(dim|size|width)|(^|_)d_head|_dim_head|rotary_dim|kv_channels|rope_dim|^d_kv$")
_WIDTH = re.compile(r"size|dim|width|rank|^n_embd|^d_|_d_|^n_inner|ffn|_inner|hidden|channels|^lru|embed")
_FREE_WIDTH, _MAX_FREE_WIDTH = re.compile(r"intermediate|ffn_(hidden_)?(dim|size)|^n_inner|^d_ff"), 64
"""Widths inside MLPs and experts, which nothing else has to divide."""
_NO_WIDTH = re.compile(
    r"vocab|window|kernel|conv|chunk|state|image|patch|position|max|token|^num_|^n_(?!embd|inner)|block|batch|group"
    r"|expand|factor|limit|length|pool|stride|temporal|spatial|version|dropout|prob|std|eps|range|scal|theta|base"
)


class Shrinkage(NamedTuple):
    """Fields to shrink beside layers and vocabulary: `head_dim` and `heads` are allowed to be divided, `windows` to be
    shortened.
    """

    head_dim: bool = True
    heads: bool = True
    windows: bool = True


ATTEMPTS = tuple(
    Shrinkage(head_dim, heads, windows)
    for windows in (True, False)
    for head_dim, heads in ((True, True), (True, False), (False, True), (False, False))
)
"""From the smallest copy to one that only has fewer layers, for a model that cannot be built smaller."""


def shrink_config(config: Mapping[str, Any], shrinkage: Shrinkage = ATTEMPTS[0]) -> dict[str, Any]:
    """The tiny copy of a configuration that names all its fields (`to_dict`). Nested parts shrink by the same rule."""
    head_dims, heads = _head_dims(config), _head_counts(config)
    fewer = math.gcd(*heads) if shrinkage.heads and heads else 1
    fewer = fewer // 2 if fewer % 2 == 0 else fewer
    narrow = _narrowing(head_dims, _hidden_size(config) // fewer) if shrinkage.head_dim else 1
    layers = next((v for k, v in config.items() if _LAYERS.match(k) and _is_count(v)), 0)
    kept = min(layers, MAX_LAYERS, max([2, *_needed_layers(config, layers)])) if layers else 0
    return _shrink(config, _Factors(narrow, fewer, layers, kept, _experts(config), shrinkage))


class _Factors(NamedTuple):
    narrow: int
    fewer: int
    layers: int
    kept: int
    experts: int
    shrinkage: Shrinkage


def _shrink(config: Mapping[str, Any], by: _Factors) -> dict[str, Any]:
    return {name: _shrink_value(name, value, by) for name, value in config.items()}


def _shrink_value(name: str, value: Any, by: _Factors) -> Any:
    if isinstance(value, Mapping):
        if value and all(str(key).isdigit() for key in value):  # by the index of a layer
            value = {key: item for key, item in value.items() if int(key) < by.kept}
        is_part = isinstance(value.get("model_type"), str)
        return shrink_config(value, by.shrinkage) if is_part else _shrink(value, by)
    if isinstance(value, list | str):
        is_by_layer = bool(by.layers) and len(value) == by.layers
        if is_by_layer and _FREE_WIDTH.search(name):
            return [_shrink_value(name, item, by) for item in value[: by.kept]]
        return value[: by.kept] if is_by_layer else _shrink_list(name, value, by) if isinstance(value, list) else value
    return _shrink_count(name, value, by) if _is_count(value) else value


def _shrink_count(name: str, value: int, by: _Factors) -> int:
    """A number of layers, tokens or experts, else a width."""
    if name.startswith("vocab_size") or name.endswith("_vocab_size"):
        return VOCAB_SIZE  # also of a smaller one: the questions draw their ids from it
    if name.endswith(("token_id", "token_index")):
        return min(value, VOCAB_SIZE - 1)
    if by.shrinkage.windows and (name in _CHOICES or (value >= _MIN_LONG_WINDOW and _WINDOW.match(name))):
        return min(value, _CHOICES.get(name, _SHORT_WINDOW))
    if _LAYERS.match(name):
        return by.kept if value == by.layers else min(value, max(by.kept, 2))
    if by.layers and "layers" in name and value <= by.layers:
        return _shrink_layer_count(value, by)
    return min(value, by.experts) if _EXPERT_COUNT.match(name) else _shrink_width(name, value, by)


def _shrink_width(name: str, value: int, by: _Factors) -> int:
    if _HEAD_DIM.search(name):
        return value // by.narrow if value % by.narrow == 0 else value
    if _HEADS.search(name) and not (name == "index_n_heads" and value >= _MANY_HEADS):
        return value // by.fewer if value % by.fewer == 0 else value
    if _WIDTH.search(name) and not _NO_WIDTH.search(name):
        factor = by.narrow * by.fewer
        if by.shrinkage.head_dim and _FREE_WIDTH.search(name):
            return min(value, _MAX_FREE_WIDTH)
        return value // factor if value % factor == 0 else min(value, -(-value // (8 * factor)) * 8)
    return value


def _shrink_list(name: str, value: list[Any], by: _Factors) -> list[Any]:
    """Sections of rotary positions add up to half of what is rotated; indices of layers end with the layers."""
    if name.endswith("_section") and all(map(_is_count, value)):
        total = sum(value) // by.narrow
        first = [item // by.narrow for item in value[1:]]
        return [total - sum(first), *first]
    if name in ("short_factor", "long_factor"):
        return value[:: by.narrow]
    if name.endswith(("token_id", "token_ids")):
        return [min(item, VOCAB_SIZE - 1) if _is_count(item) else item for item in value]
    if _is_index_list(name, value, by.layers):
        return [item for item in value if item <= by.kept]
    return value


def _shrink_layer_count(value: int, by: _Factors) -> int:
    """Layers of some kind at the front stay; a larger part of the layers stays that part."""
    return value if value + 2 <= by.kept else value * by.kept // by.layers


def _needed_layers(config: Mapping[str, Any], layers: int) -> Iterator[int]:
    """The prefixes that have two layers of each kind, by each field that tells kinds apart."""
    for name, value in config.items():
        if isinstance(value, Mapping) and not isinstance(value.get("model_type"), str):
            yield from _needed_layers(value, layers)
        elif isinstance(value, list | str) and len(value) == layers:
            kinds = [json.dumps(item, default=str) for item in value]
            yield from ([i for i, each in enumerate(kinds) if each == kind][:2][-1] + 1 for kind in set(kinds))
        elif isinstance(value, list) and _is_index_list(name, value, layers):
            yield min(sorted(value)[:2][-1] + 2, layers)
        elif _is_count(value) and 1 < value < layers:
            if _PERIOD.search(name):
                yield 2 * value
            elif _FIRST_LAYERS.search(name) and value < layers // 2:
                yield value + 2


def _is_index_list(name: str, value: list[Any], layers: int) -> bool:
    is_named = bool(layers and value and _INDICES.search(name))
    return is_named and all(map(_is_count, value)) and max(value) <= layers


def _head_dims(config: Mapping[str, Any]) -> list[int]:
    """All widths of heads, those that follow from a hidden size too."""
    named = [v for k, v in config.items() if _is_count(v) and v > 1 and _HEAD_DIM.search(k)]
    hidden = _hidden_size(config)
    heads = next(
        (
            config[k]
            for k in ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")
            if _is_count(config.get(k))
        ),
        0,
    )
    is_implicit = hidden and heads and hidden % heads == 0 and not _is_count(config.get("head_dim"))
    return [*named, hidden // heads] if is_implicit else named


def _hidden_size(config: Mapping[str, Any]) -> int:
    return next((config[k] for k in ("hidden_size", "n_embd", "d_model") if _is_count(config.get(k))), 0)


def _narrowing(head_dims: list[int], width: int) -> int:
    """The largest power of two that leaves every head an even width of 8 or more, and `width` a multiple of 8."""
    factor = 1
    while (head_dims or width > _MAX_FREE_WIDTH * factor) and (
        all(d % (4 * factor) == 0 and d // (2 * factor) >= _MIN_HEAD_DIM for d in head_dims)
        and width % (2 * _MIN_HEAD_DIM * factor) == 0
    ):
        factor *= 2
    return factor


def _head_counts(config: Mapping[str, Any]) -> list[int]:
    """Of attention, and of other layers where they have many."""
    return [
        v
        for k, v in config.items()
        if _is_count(v)
        and v > (2 if "mamba" in k else 1)
        and _HEADS.search(k)
        and not _HEAD_DIM.search(k)
        and not k.startswith(("n_group", "topk"))
    ]


def _experts(config: Mapping[str, Any]) -> int:
    """A number of experts that groups and choices of a token divide."""
    chosen = max((v for k, v in config.items() if _is_count(v) and _PER_TOKEN.search(k)), default=2)
    groups = config.get("n_group")
    multiple = 2 * groups if _is_count(groups) and groups else 2
    return -(-max(_EXPERTS, 2 * min(chosen, 64)) // multiple) * multiple


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
