"""Which tensors an export holds. Nothing is read until a tensor is asked for, and each is asked for once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.runtime.models.merging import Source, adapter_names, merge, plain_sources
from harness.runtime.shards import Weights


@dataclass(frozen=True)
class Content:
    """Shapes by the names in the output; `get` makes a tensor, fp32 from the masters where there are any."""

    shapes: dict[str, torch.Size]
    get: Callable[[str], torch.Tensor]


def merged(weights: Weights, adapter: Mapping[str, Any]) -> Content:
    """The plain model: every weight with its adapter added, computed from the fp32 masters."""
    if not adapter:
        return Content(weights.shapes, weights.get)
    sources = {n: s for n, s in plain_sources(weights.shapes, adapter).items() if s.base in weights.shapes}

    def get(name: str) -> torch.Tensor:
        source = sources[name]
        base = weights.get(source.base)
        return _merged(weights, base, source) if source.a else base

    return Content({name: weights.shapes[source.base] for name, source in sources.items()}, get)


def _merged(weights: Weights, base: torch.Tensor, source: Source) -> torch.Tensor:
    """In fp32, so that what an export rounds is the sum and not each part."""
    return merge(base.float(), weights.get(str(source.a)), weights.get(str(source.b)), source)


def adapters_alone(weights: Weights, adapter: Mapping[str, Any]) -> Content:
    """What `peft` saves: the adapters, and modules that were trained whole."""
    by_output = {there: here for here, there in adapter_names(weights.shapes, adapter).items()}
    shapes = {there: weights.shapes[here] for there, here in by_output.items()}
    return Content(shapes, lambda name: weights.get(by_output[name]))
