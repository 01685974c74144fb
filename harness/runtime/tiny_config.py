# SPDX-License-Identifier: Apache-2.0
"""A tiny copy of any `transformers` configuration, by one rule for all families.

Layers: where lists by layer tell kinds apart, one of each combination and two of each kind; else the shortest prefix
with two of each kind, by periods and indices.
Widths: heads become narrow and fewer, and every width shrinks by the same factors, so that what was divisible is.
Windows and chunks, of attention and of states, become shorter than a document of the probe, so that layers without them
show, and so do the tokens and blocks that attention chooses (`index_topk`), whose many heads stay: scores of few heads
tie. Kernels keep their sizes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
_LAYERS = re.compile(r"^(num_hidden_layers|n_layers?|num_layers|(num_)?(de|en)coder_layers|num_blocks|depth)$")
_PERIOD = re.compile(r"period|interval|pattern|every|freq|_step")
_FIRST_LAYERS = re.compile(r"dense|first_k|start|offset")
_INDICES = re.compile(r"layer|indices|_idx|_ids")
_LAYER_COUNT = re.compile(rf"layers|layer_index|first_k|{_PERIOD.pattern}|{_FIRST_LAYERS.pattern}")
_EXPERT_COUNT = re.compile(r"^(moe_)?(n|num)(_local|_routed|_sparse)?_experts$|^(moe_num|ffn_num)_experts$")
_PER_TOKEN = re.compile(r"experts?_per_tok|^(moe_|router_)?top_?k|experts_topk")
_HEADS = re.compile(
    r"heads?(_count)?$|^n_head|(^|_)n_groups$|_num_groups$|^o_groups$|^num_head|_n_heads?$|^num_query_groups$"
)
_HEAD_COUNTS = ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")
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
    shortened. `choice`: layers may be left out between others.
    """

    head_dim: bool = True
    heads: bool = True
    windows: bool = True
    choice: bool = True


ATTEMPTS = tuple(
    Shrinkage(head_dim, heads, windows, choice)
    for choice in (True, False)
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
    fields = [*_layer_fields(config, layers)]
    prefix = _prefix(fields, layers)
    chosen = _choose_layers(fields, layers) if shrinkage.choice else None
    kept, numbers = chosen if chosen and len(chosen[0]) < len(prefix) else (prefix, {})
    return _shrink(config, _Factors(narrow, fewer, layers, kept, numbers, _experts(config), shrinkage))


class _Factors(NamedTuple):
    narrow: int
    fewer: int
    layers: int
    kept: Sequence[int]
    numbers: Mapping[str, Any]
    experts: int
    shrinkage: Shrinkage


def _shrink(config: Mapping[str, Any], by: _Factors) -> dict[str, Any]:
    return {name: _shrink_value(name, value, by) for name, value in config.items()}


def _shrink_value(name: str, value: Any, by: _Factors) -> Any:
    if name in by.numbers:
        return by.numbers[name]
    if isinstance(value, Mapping):
        if value and all(str(key).isdigit() for key in value) and name != "id2label":  # by the index of a layer
            value = {key: item for key, item in value.items() if int(key) in by.kept}
            value = {type(key)(by.kept.index(int(key))): item for key, item in value.items()}
        is_part = isinstance(value.get("model_type"), str)
        return shrink_config(value, by.shrinkage) if is_part else _shrink(value, by)
    if isinstance(value, list | str):
        if _is_by_layer(name, value, by.layers):
            kept = [value[i] for i in by.kept]
            kept = [_shrink_value(name, item, by) for item in kept] if _FREE_WIDTH.search(name) else kept
            return "".join(kept) if isinstance(value, str) else kept
        return _shrink_list(name, value, by) if isinstance(value, list) else value
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
        return len(by.kept) if value == by.layers else min(value, max(len(by.kept), 2))
    if by.layers and "layers" in name and value <= by.layers:
        return 2 if "per_stack" in name else _shrink_layer_count(value, by)
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
        return [item for item in value if item <= len(by.kept)]
    return value


def _shrink_layer_count(value: int, by: _Factors) -> int:
    """Layers of some kind at the front stay; a larger part of the layers stays that part."""
    return value if value + 2 <= len(by.kept) else value * len(by.kept) // by.layers


class _LayerField(NamedTuple):
    """A field that tells layers apart. `kinds`: what it says of each. `counts`: it is a number, and of no period."""

    name: str
    value: Any
    kinds: Sequence[Any]
    counts: bool = False

    def layers_by_kind(self) -> list[set[int]]:
        """The layers of which it says the same."""
        return [{i for i, each in enumerate(self.kinds) if each == kind} for kind in dict.fromkeys(self.kinds)]


def _layer_fields(config: Mapping[str, Any], layers: int) -> Iterator[_LayerField]:
    """All of a configuration, but for those of its parts."""
    for name, value in config.items():
        if isinstance(value, Mapping) and not isinstance(value.get("model_type"), str):
            yield from _layer_fields(value, layers)
        elif _is_by_layer(name, value, layers):
            yield _LayerField(name, value, [json.dumps(item, default=str) for item in value])
        elif isinstance(value, list) and _is_index_list(name, value, layers):
            yield _LayerField(name, value, [i in value for i in range(layers)])
        elif _is_count(value) and 1 < value < layers and _LAYER_COUNT.search(str(name)):
            yield _LayerField(name, value, _count_kinds(name, value, layers), counts=not _PERIOD.search(name))


def _count_kinds(name: str, value: int, layers: int) -> list[Any]:
    """Of a period, the place in it; of blocks, the first of each; else whether a layer is of those that are counted."""
    if _PERIOD.search(name):
        return [i % value for i in range(layers)]
    if "layers_per" in name:
        return [i % value == 0 for i in range(layers)]
    return [i >= layers - value if "shared" in name else i < value for i in range(layers)]


def _prefix(fields: Sequence[_LayerField], layers: int) -> range:
    """The shortest that has two layers of each kind, without regard to numbers of most layers or of the last ones; two
    of each of several stacks, whose calls the number of layers counts.
    """
    stacks = next((layers // field.value for field in fields if "per_stack" in field.name), 0)
    if stacks:
        return range(2 * stacks)
    near = [f for f in fields if not f.counts or not ("shared" in f.name or 2 * f.value >= layers)]
    needed = [sorted(each)[:2][-1] + 1 for field in near for each in field.layers_by_kind()]
    return range(min(layers, MAX_LAYERS, max([2, *needed])))


def _choose_layers(fields: Sequence[_LayerField], layers: int) -> tuple[list[int], dict[str, Any]] | None:
    """The layers of a copy, and its other numbers of layers and indices; None where those do not follow from lists."""
    lists = [field for field in fields if isinstance(field.kinds[0], str)]
    counts = [field for field in fields if field.counts]
    of_kind, indices = [each for field in lists for each in field.layers_by_kind()], []
    for name, value, kinds, is_number in fields:
        if isinstance(value, list) and not isinstance(kinds[0], str):
            indices += [(name, value, b) for b in (0, 1) if {i - b for i in value} in [*of_kind, {*range(layers)}]][:1]
            if not indices or indices[-1][0] != name:
                return None
        elif isinstance(value, int) and not is_number and not any(_has_period(each.kinds, value) for each in lists):
            return None
    combined = [*zip(*(field.kinds for field in [*lists, *counts]), strict=True)]
    kept = {combined.index(each) for each in combined}
    for each in [*of_kind, *(each for field in counts for each in field.layers_by_kind())]:
        kept |= set() if len(kept & each) > 1 else {*sorted(each)[:2]}
    chosen = sorted(kept)
    numbers: dict[str, Any] = {f.name: _count_again(f.name, [f.kinds[i] for i in chosen]) for f in counts}
    numbers |= {name: [chosen.index(i - b) + b for i in value if i - b in kept] for name, value, b in indices}
    return (chosen, numbers) if lists and None not in numbers.values() else None


def _has_period(kinds: Sequence[str], period: int) -> bool:
    same = sum(a == b for a, b in zip(kinds, kinds[period:], strict=False))
    return len(set(kinds)) > 1 and same >= 0.9 * (len(kinds) - period)  # the first and last may differ


def _count_again(name: str, kinds: list[bool]) -> int | None:
    """The number that says this of layers; None without one."""
    return next((n for n in range(1, len(kinds) + 1) if _count_kinds(name, n, len(kinds)) == kinds), None)


def _is_index_list(name: str, value: list[Any], layers: int) -> bool:
    is_named = bool(layers and value and _INDICES.search(name))
    are_numbers = is_named and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    return are_numbers and value[0] >= 0 and value[-1] <= layers and all(map(int.__lt__, value, value[1:]))


def _is_by_layer(name: str, value: Any, layers: int) -> bool:
    """Has it an item for each layer?"""
    is_pattern = isinstance(value, str) and re.search("pattern|layer", str(name))
    is_list = isinstance(value, list) and not _is_index_list(name, value, layers)
    return bool(layers and (is_pattern or is_list)) and len(value) == layers


def _head_dims(config: Mapping[str, Any]) -> list[int]:
    """All widths of heads, those that follow from a hidden size too."""
    named = [v for k, v in config.items() if _is_count(v) and v > 1 and _HEAD_DIM.search(k)]
    hidden = _hidden_size(config)
    heads = next((config[k] for k in _HEAD_COUNTS if _is_count(config.get(k))), 0)
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
    counts = {k: v for k, v in config.items() if _is_count(v) and v > (2 if "mamba" in k else 1) and _HEADS.search(k)}
    return [v for k, v in counts.items() if not _HEAD_DIM.search(k) and not k.startswith(("n_group", "topk"))]


def _experts(config: Mapping[str, Any]) -> int:
    """A number of experts that groups and choices of a token divide."""
    chosen = max((v for k, v in config.items() if _is_count(v) and _PER_TOKEN.search(k)), default=2)
    groups = config.get("n_group")
    multiple = 2 * groups if _is_count(groups) and groups else 2
    return -(-max(_EXPERTS, 2 * min(chosen, 64)) // multiple) * multiple


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
