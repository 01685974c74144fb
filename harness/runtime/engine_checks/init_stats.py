# SPDX-License-Identifier: Apache-2.0
"""The standard deviation of initial weights, and that of the model's own initialisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from harness.runtime.engine_checks.model_weights import iter_weights_of_class, shard_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MODULE_CLASSES = {"Embedding": torch.nn.Embedding, "Linear": torch.nn.Linear}
_WIDTH = 48
_MAX_MODULES, _MAX_ELEMENTS = 6, 1 << 12


@dataclass(frozen=True, slots=True)
class WeightStats:
    """Count, sum and sum of squares of some elements."""

    count: float
    total: float
    squares: float

    @property
    def std(self) -> float:
        """The standard deviation."""
        mean = self.total / max(1.0, self.count)
        return float(max(0.0, self.squares / max(1.0, self.count) - mean * mean) ** 0.5)


def compute_reference_stats(model: torch.nn.Module, config: PreTrainedConfig) -> dict[str, WeightStats]:
    """Statistics of a new module after the model's `_init_weights`, by class. Restores the random state.

    A model without `_init_weights` (a pipeline) has the `initializer_range` of its configuration.
    """
    stats: dict[str, WeightStats] = {}
    init_weights = getattr(model, "_init_weights", None)
    if init_weights is None:
        initializer_range = getattr(config, "initializer_range", None)
        range_stats = WeightStats(1.0, 0.0, float(initializer_range) ** 2) if initializer_range else None
        return dict.fromkeys(MODULE_CLASSES, range_stats) if range_stats else {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for name, kind in MODULE_CLASSES.items():
            module = kind(_WIDTH, _WIDTH)
            before = module.weight.detach().clone()
            init_weights(module)
            if not torch.equal(before, module.weight):
                stats[name] = _stats_of(module.weight)
    return stats


def compute_model_stats(model: torch.nn.Module) -> dict[str, list[float]]:
    """(count, sum, sum of squares) of this rank's shards of some modules, by class. They add up over ranks."""
    stats: dict[str, list[float]] = {}
    for name, kind in MODULE_CLASSES.items():
        weights = [w for _, w in iter_weights_of_class(model, kind)]
        step = max(1, len(weights) // _MAX_MODULES)
        parts = [shard[0] for w in weights[::step] if (shard := shard_of(w)) is not None]
        part_stats = [_stats_of(part[:: max(1, part.numel() // _MAX_ELEMENTS)]) for part in parts if part.numel()]
        if part_stats:
            stats[name] = [
                sum(s.count for s in part_stats),
                sum(s.total for s in part_stats),
                sum(s.squares for s in part_stats),
            ]
    return stats


def _stats_of(tensor: torch.Tensor) -> WeightStats:
    values = tensor.detach().double()
    return WeightStats(float(values.numel()), float(values.sum()), float((values * values).sum()))
