# SPDX-License-Identifier: Apache-2.0
"""AutoTP's layer specs against the names of weights, as DeepSpeed matches them. Judges nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from harness.facts.model_facts import ModelFacts
from harness.facts.tensor_parallel_plans import LayerSpec, LayerSpecs


def find_spec(specs: Sequence[LayerSpec], name: str, family: str) -> LayerSpec | None:
    """The first spec with a pattern that matches the beginning of the name (`module_inject/autotp_config.py`)."""
    return next((spec for spec in specs if _is_match(spec, name, family)), None)


def role_of(spec: LayerSpec) -> str:
    """`row`, `column`, `gathered` (a column whose output is joined again), or `skip`."""
    role = str(spec.get("partition_type", "column")).lower()
    return "gathered" if role == "column" and spec.get("gather_output") else role


def assign_roles(model: ModelFacts, specs: Sequence[LayerSpec]) -> dict[str, str]:
    """The role of each matrix of one layer of each kind and behind the layers. Weights without a match are left out."""
    roles: dict[str, str] = {}
    for name in _iter_matrix_names(model):
        spec = find_spec(specs, name, model.family)
        if spec is not None:
            roles[name] = role_of(spec)
    return roles


def _iter_matrix_names(model: ModelFacts) -> Iterator[str]:
    """Names of the weights that AutoTP may shard: those of linear layers, of one layer of each kind."""
    kinds: set[int] = set()
    for index, layer in enumerate(model.layers):
        if id(layer) not in kinds:
            kinds.add(id(layer))
            yield from (f"{model.layer_path}.{index}.{weight.name}" for weight in layer if len(weight.shape) == 2)
    yield from (weight.name for weight in model.after if len(weight.shape) == 2)


def _is_match(spec: LayerSpec, name: str, family: str) -> bool:
    """Is the layer spec one for this weight of a model of this family?"""
    types = spec.get("model_types")
    if isinstance(types, list | tuple) and types and family not in [str(type_).lower() for type_ in types]:
        return False
    patterns = spec.get("patterns")
    if not isinstance(patterns, list | tuple):
        return False
    for pattern in patterns:  # a search asks this a million times
        regex = compile_pattern(pattern) if isinstance(pattern, str) else None
        if regex is not None and regex.match(name):
            return True
    return False


def compile_patterns(spec: LayerSpec) -> list[re.Pattern[str]]:
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


def read_layer_specs(config: Any) -> list[LayerSpec]:
    """The `layer_specs` of a `partition_config` that are maps."""
    specs = config.get("layer_specs") if isinstance(config, dict) else None
    return [spec for spec in specs if isinstance(spec, dict)] if isinstance(specs, list) else []


def convert_transformers_plan(plan: Mapping[str, str]) -> LayerSpecs:
    """A plan of `transformers` as DeepSpeed converts it (`module_inject/tp_plan_converter.py`)."""
    return tuple(
        {
            "patterns": [".*" + pattern.replace(".", r"\.").replace("*", ".*") + r"\.weight$"],
            "partition_type": {"rowwise": "row", "replicated_with_grad_allreduce": "skip"}.get(style, "column"),
            "gather_output": style in ("colwise_rep", "colwise_gather_output"),
        }
        for pattern, style in plan.items()
    )
