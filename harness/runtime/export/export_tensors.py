# SPDX-License-Identifier: Apache-2.0
"""The tensors of an export, read lazily: the writer reads each of them once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.runtime.checkpoint.consolidate import FullWeights
from harness.runtime.models.lora_merge import WeightSource, find_weight_sources, merge_lora, to_adapter_names


@dataclass(frozen=True)
class ExportTensors:
    """Shapes by the names in the output. `get` returns a tensor, fp32 from the masters where there are any.
    `stored_bytes`: the sizes of tensors that were not trained, which stay as their file has them.
    """

    shapes: dict[str, torch.Size]
    get: Callable[[str], torch.Tensor]
    stored_bytes: Mapping[str, int] = field(default_factory=dict)


def merge_adapters(weights: FullWeights, adapter: Mapping[str, Any]) -> ExportTensors:
    """The plain model: every weight with its adapter added, computed from the fp32 masters."""
    if not adapter:
        return ExportTensors(weights.shapes, weights.get)
    sources = {n: s for n, s in find_weight_sources(weights.shapes, adapter).items() if s.base in weights.shapes}

    def get(name: str) -> torch.Tensor:
        source = sources[name]
        base = weights.get(source.base)
        return _merge_param(weights, base, source) if source.lora_a else base

    return ExportTensors({name: weights.shapes[source.base] for name, source in sources.items()}, get)


def _merge_param(weights: FullWeights, base: torch.Tensor, source: WeightSource) -> torch.Tensor:
    """In fp32, so that what an export rounds is the sum and not each part."""
    return merge_lora(base.float(), weights.get(str(source.lora_a)), weights.get(str(source.lora_b)), source)


def select_adapters(weights: FullWeights, adapter: Mapping[str, Any]) -> ExportTensors:
    """The tensors that `peft` saves: the adapters, and modules that were trained whole."""
    sources = {output: source for source, output in to_adapter_names(weights.shapes, adapter).items()}
    shapes = {output: weights.shapes[source] for output, source in sources.items()}
    return ExportTensors(shapes, lambda name: weights.get(sources[name]))
