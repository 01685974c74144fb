"""Shapes of models for the tensor-parallel gates. No gate of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from harness.facts.model_lookup import ModelFacts


def common_degree(most: int, *sizes: int) -> int:
    """The largest degree up to `most` that divides all sizes."""
    return next(d for d in range(most, 0, -1) if all(size % d == 0 for size in sizes))


def matrices(model: ModelFacts) -> Iterator[str]:
    """Names of the weights that AutoTP may shard: those of linear layers, of one layer of each kind."""
    seen: set[int] = set()
    for index, layer in enumerate(model.layers):
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield from (f"{model.layer_path}.{index}.{p.name}" for p in layer if len(p.shape) == 2)
    yield from (p.name for p in model.after if len(p.shape) == 2)


def roles(model: ModelFacts, specs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What `layer_specs` makes of each weight: `row`, `column`, `gathered`, `skip`; those that match nothing are left
    out. The first spec whose pattern matches the beginning of the name wins (`module_inject/autotp_config.py`).
    """
    found: dict[str, str] = {}
    for name in matrices(model):
        for spec in specs:
            if _matches(spec, name, model.family):
                kind = str(spec.get("partition_type", "column")).lower()
                found[name] = "gathered" if kind == "column" and spec.get("gather_output") else kind
                break
    return found


def _matches(spec: Mapping[str, Any], name: str, family: str) -> bool:
    types = spec.get("model_types")
    if types and family not in [str(t).lower() for t in types]:
        return False
    patterns = spec.get("patterns") or ()
    return any(isinstance(p, str) and (c := compiled(p)) is not None and c.match(name) for p in patterns)


@cache
def compiled(pattern: str) -> re.Pattern[str] | None:
    """The regular expression, None where it is none."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None


def layer_specs(config: Any) -> list[Mapping[str, Any]]:
    """The `layer_specs` of a `partition_config`, without what is no map."""
    specs = config.get("layer_specs") if isinstance(config, dict) else None
    return [s for s in specs if isinstance(s, dict)] if isinstance(specs, list) else []


# Which weights a preset names, by families whose modules have these names (`module_inject/autotp_config.py`). A preset
# that shards only one half of a pair of layers is not listed: the first forward pass would not multiply. `phi3`
# has none, since its models cut query, key and value out of the whole width.
_PLAIN = frozenset("llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gemma3 mixtral qwen2_moe qwen3_moe".split())
PRESETS: dict[str, frozenset[str]] = {
    "llama": _PLAIN,
    "qwen2": _PLAIN,
    "mixtral": frozenset(("mixtral", "qwen2_moe", "qwen3_moe")),
    "phi3": frozenset(),
    "bloom": frozenset(("bloom", "falcon", "gpt_neox")),
    "chatglm": frozenset(("chatglm",)),
    "deepseek_v2": frozenset(("deepseek_v2", "deepseek_v3")),
}
SPLIT_HEAD_NORMS = frozenset("qwen3 qwen3_moe gemma3_text gemma3".split())
"""Families that normalise queries and keys head by head, with one weight for all heads."""
