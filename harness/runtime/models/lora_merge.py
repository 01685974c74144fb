# SPDX-License-Identifier: Apache-2.0
"""The names of the tensors of a model with LoRA adapters, and merging an adapter into its weight.

Pure functions over names and tensors: export uses them on a checkpoint, without building the model. The names are
those of `peft.inject_adapter_in_model`:

| In the checkpoint | Is |
| --- | --- |
| `model.layers.0.self_attn.q_proj.base_layer.weight` | the frozen weight of `model.layers.0.self_attn.q_proj` |
| `model.layers.0.self_attn.q_proj.lora_A.default.weight` | A, (r, in) |
| `model.layers.0.self_attn.q_proj.lora_B.default.weight` | B, (out, r) |
| `model.embed_tokens.lora_embedding_A.default` | A of an embedding, (r, vocabulary); B is (hidden, r) |
| `lm_head.original_module.weight` | what a module of `modules_to_save` was; left out everywhere |
| `lm_head.modules_to_save.default.weight` | what it became: the weight of `lm_head` |
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

ADAPTER_NAME = "default"
PEFT_PREFIX = "base_model.model."
"""The prefix of every name in `adapter_model.safetensors`."""
_LORA_SUFFIX = re.compile(r"\.(lora_A|lora_B|lora_embedding_A|lora_embedding_B)\.default(?:\.weight)?$")


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The names in the checkpoint that a weight of the plain model comes from."""

    base: str
    lora_a: str | None = None
    lora_b: str | None = None
    scaling: float = 0.0
    transposed: bool = False
    """True where the weight is (in, out): embeddings, and GPT-2's `Conv1D`."""


def is_adapted(names: Iterable[str]) -> bool:
    """True when the names are those of a model with adapters."""
    return any(_LORA_SUFFIX.search(name) or f".modules_to_save.{ADAPTER_NAME}." in name for name in names)


def find_weight_sources(names: Iterable[str], adapter: Mapping[str, Any]) -> dict[str, WeightSource]:
    """The source of each name of the plain model. `adapter`: the contents of `adapter_config.json`."""
    all_names = set(names)
    sources: dict[str, WeightSource] = {}
    for name in sorted(all_names):
        if _LORA_SUFFIX.search(name) or ".original_module." in name:
            continue
        plain = name.replace(f".modules_to_save.{ADAPTER_NAME}.", ".").replace(".base_layer.", ".")
        sources[plain] = _find_weight_source(name, all_names, adapter)
    return sources


def _find_weight_source(name: str, all_names: set[str], adapter: Mapping[str, Any]) -> WeightSource:
    module, _, leaf = name.rpartition(".base_layer.")
    if leaf != "weight":
        return WeightSource(name)
    if f"{module}.lora_A.{ADAPTER_NAME}.weight" in all_names:
        a, b = f"{module}.lora_A.{ADAPTER_NAME}.weight", f"{module}.lora_B.{ADAPTER_NAME}.weight"
        return WeightSource(name, a, b, lora_scaling(module, adapter), bool(adapter.get("fan_in_fan_out")))
    if f"{module}.lora_embedding_A.{ADAPTER_NAME}" in all_names:
        a, b = f"{module}.lora_embedding_A.{ADAPTER_NAME}", f"{module}.lora_embedding_B.{ADAPTER_NAME}"
        return WeightSource(name, a, b, lora_scaling(module, adapter), transposed=True)
    return WeightSource(name)


def lora_scaling(module: str, adapter: Mapping[str, Any]) -> float:
    """The factor of B A in this module: alpha / r, or alpha / sqrt(r) with `use_rslora`."""
    rank = _match_pattern(module, adapter.get("rank_pattern") or {}, adapter["r"])
    alpha = _match_pattern(module, adapter.get("alpha_pattern") or {}, adapter["lora_alpha"])
    return float(alpha / math.sqrt(rank) if adapter.get("use_rslora") else alpha / rank)


def _match_pattern(module: str, patterns: Mapping[str, Any], default: Any) -> Any:
    """The value of the first pattern that fits the end of the module's name, as `peft` looks it up."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def merge_lora(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, source: WeightSource) -> torch.Tensor:
    """weight + scaling x B A, computed in fp32 and returned in the format of `weight`; no argument is changed.

    `weight` is (out, in), or (in, out) where `source.transposed`; `a` is (r, in), `b` is (out, r).
    """
    delta = (b.float() @ a.float()) * source.scaling
    # `adapter_config.json` says `fan_in_fan_out` once for modules of both kinds; only a square weight leaves a doubt.
    is_transposed = weight.shape != delta.shape if weight.shape[0] != weight.shape[1] else source.transposed
    return (weight.float() + (delta.T if is_transposed else delta)).to(weight.dtype)


def to_adapter_names(names: Iterable[str], adapter: Mapping[str, Any]) -> dict[str, str]:
    """The names in `adapter_model.safetensors`, by name in the checkpoint."""
    bias = adapter.get("bias", "none")
    out: dict[str, str] = {}
    for name in sorted(names):
        trained = bool(_LORA_SUFFIX.search(name)) or f".modules_to_save.{ADAPTER_NAME}." in name
        if not trained and name.endswith(".bias") and ".original_module." not in name:
            trained = bias == "all" or (bias == "lora_only" and name.endswith(".base_layer.bias"))
        if trained:
            plain = name.replace(f".modules_to_save.{ADAPTER_NAME}.", ".").replace(f".{ADAPTER_NAME}.", ".")
            out[name] = PEFT_PREFIX + plain.removesuffix(f".{ADAPTER_NAME}")
    return out
