"""How far initial weights are spread, and how far the model's own initialisation spreads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness.runtime.engine_checks.model_weights import iter_weights_of_class, shard_of

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


def compute_reference_stats(model: Any, config: Any) -> dict[str, WeightStats]:
    """By class, what the model's `_init_weights` makes of a fresh module; leaves the random numbers as they were.

    Where the model has none (a pipeline) the configuration's `initializer_range` says it.
    """
    found: dict[str, WeightStats] = {}
    if not hasattr(model, "_init_weights"):
        wide = getattr(config, "initializer_range", None)
        spread = WeightStats(1.0, 0.0, float(wide) ** 2) if wide else None
        return dict.fromkeys(MODULE_CLASSES, spread) if spread else {}  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for name, kind in MODULE_CLASSES.items():
            module = kind(_WIDTH, _WIDTH)
            before = module.weight.detach().clone()
            model._init_weights(module)
            if not torch.equal(before, module.weight):
                found[name] = _stats_of(module.weight)
    return found


def compute_model_stats(model: torch.nn.Module) -> dict[str, list[float]]:
    """By class, (count, sum, sum of squares) of what this rank holds of some modules: they add up over ranks."""
    found: dict[str, list[float]] = {}
    for name, kind in MODULE_CLASSES.items():
        every = [w for _, w in iter_weights_of_class(model, kind)]
        step = max(1, len(every) // _MAX_MODULES)
        parts = [sharded[0] for w in every[::step] if (sharded := shard_of(w)) is not None]
        made = [_stats_of(part[:: max(1, part.numel() // _MAX_ELEMENTS)]) for part in parts if part.numel()]
        if made:
            found[name] = [sum(s.count for s in made), sum(s.total for s in made), sum(s.squares for s in made)]
    return found


def _stats_of(tensor: torch.Tensor) -> WeightStats:
    values = tensor.detach().double()
    return WeightStats(float(values.numel()), float(values.sum()), float((values * values).sum()))
