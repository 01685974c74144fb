# SPDX-License-Identifier: Apache-2.0
"""Presets and layer specs of AutoTP, and what they make of a model's weights. Judges nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from harness.facts.model_lookup import ModelFacts


def _iter_matrix_names(model: ModelFacts) -> Iterator[str]:
    """Names of the weights that AutoTP may shard: those of linear layers, of one layer of each kind."""
    kinds: set[int] = set()
    for index, layer in enumerate(model.layers):
        if id(layer) not in kinds:
            kinds.add(id(layer))
            yield from (f"{model.layer_path}.{index}.{weight.name}" for weight in layer if len(weight.shape) == 2)
    yield from (weight.name for weight in model.after if len(weight.shape) == 2)


def assign_roles(model: ModelFacts, specs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The role of each weight by `layer_specs`: `row`, `column`, `gathered`, `skip`. Weights without a match are left
    out. The first spec whose pattern matches the beginning of the name wins (`module_inject/autotp_config.py`).
    """
    roles: dict[str, str] = {}
    for name in _iter_matrix_names(model):
        spec = next((spec for spec in specs if _is_match(spec, name, model.family)), None)
        if spec is not None:
            role = str(spec.get("partition_type", "column")).lower()
            roles[name] = "gathered" if role == "column" and spec.get("gather_output") else role
    return roles


def _is_match(spec: Mapping[str, Any], name: str, family: str) -> bool:
    """Is the layer spec one for this weight of a model of this family?"""
    types = spec.get("model_types")
    if isinstance(types, list | tuple) and types and family not in [str(type_).lower() for type_ in types]:
        return False
    return any(regex.match(name) for regex in _compile_patterns(spec))


def _compile_patterns(spec: Mapping[str, Any]) -> list[re.Pattern[str]]:
    """The patterns of a layer spec, without those that are no regular expressions."""
    patterns = spec.get("patterns")
    if not isinstance(patterns, list | tuple):
        return []
    regexes = [compile_pattern(pattern) for pattern in patterns if isinstance(pattern, str)]
    return [regex for regex in regexes if regex is not None]


@cache
def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """The regular expression; None where the pattern is none."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None


def read_layer_specs(config: Any) -> list[Mapping[str, Any]]:
    """The `layer_specs` of a `partition_config` that are maps."""
    specs = config.get("layer_specs") if isinstance(config, dict) else None
    return [spec for spec in specs if isinstance(spec, dict)] if isinstance(specs, list) else []


def has_norm_sums(partition: object, layer_path: str) -> bool:
    """Has the `partition_config` specs that sum the gradients of both norms?"""
    names = [f"{layer_path}.0.self_attn.{name}.weight" for name in ("q_norm", "k_norm")]
    regexes = [
        regex
        for spec in read_layer_specs(partition)
        if spec.get("grad_allreduce") and str(spec.get("partition_type", "")).lower() == "skip"
        for regex in _compile_patterns(spec)
    ]
    return all(any(regex.match(name) for regex in regexes) for name in names)


_LLAMA_FAMILIES = frozenset(
    "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gemma3 mixtral qwen2_moe qwen3_moe".split()
)
"""Families whose layers have the names of Llama's."""
PRESETS: dict[str, frozenset[str]] = {
    "llama": _LLAMA_FAMILIES,
    "qwen2": _LLAMA_FAMILIES,
    "mixtral": frozenset(("mixtral", "qwen2_moe", "qwen3_moe")),
    "phi3": frozenset(),
    "bloom": frozenset(("bloom", "falcon", "gpt_neox")),
    "chatglm": frozenset(("chatglm",)),
    "deepseek_v2": frozenset(("deepseek_v2", "deepseek_v3")),
}
"""The families whose modules have the names in each preset (`module_inject/autotp_config.py`). A family of which it
shards only one half of a pair of layers is left out: the first forward pass would not multiply. `phi3` has none, since
its models cut query, key and value out of the whole width.
"""
SPLIT_HEAD_NORMS = frozenset("qwen3 qwen3_moe gemma3_text gemma3".split())
"""Families that normalise queries and keys head by head, with one weight for all heads."""
