# SPDX-License-Identifier: Apache-2.0
"""Presets of AutoTP by the families that they fit, and norms over split heads. Judges nothing."""

from __future__ import annotations

from harness.plan.weights.layer_specs import compile_patterns, read_layer_specs


def has_norm_sums(partition: object, layer_path: str) -> bool:
    """Has the `partition_config` specs that sum the gradients of both norms?"""
    names = [f"{layer_path}.0.self_attn.{name}.weight" for name in ("q_norm", "k_norm")]
    regexes = [
        regex
        for spec in read_layer_specs(partition)
        if spec.get("grad_allreduce") and str(spec.get("partition_type", "")).lower() == "skip"
        for regex in compile_patterns(spec)
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
shards only one half of a pair of layers is left out: the first forward pass would not multiply. The preset `phi3` fits
no family, since its models cut query, key and value out of the whole width.
"""
SPLIT_HEAD_NORMS = frozenset("qwen3 qwen3_moe gemma3_text gemma3".split())
"""Families that normalise queries and keys head by head, with one weight for all heads."""
