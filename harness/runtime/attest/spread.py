"""How far initial weights are spread, and how far the model's own initialisation spreads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness.runtime.attest.weights import modules_with_weights, shard_of

KINDS = {"Embedding": torch.nn.Embedding, "Linear": torch.nn.Linear}
_WIDTH = 48
_MOST_MODULES, _MOST_ELEMENTS = 6, 1 << 12


@dataclass(frozen=True, slots=True)
class Spread:
    """Count, sum and sum of squares of some elements."""

    count: float
    total: float
    squares: float

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        mean = self.total / max(1.0, self.count)
        return float(max(0.0, self.squares / max(1.0, self.count) - mean * mean) ** 0.5)


def reference(model: Any, config: Any) -> dict[str, Spread]:
    """By class, what the model's `_init_weights` makes of a fresh module; leaves the random numbers as they were.

    Where the model has none (a pipeline) the configuration's `initializer_range` says it.
    """
    found: dict[str, Spread] = {}
    if not hasattr(model, "_init_weights"):
        wide = getattr(config, "initializer_range", None)
        spread = Spread(1.0, 0.0, float(wide) ** 2) if wide else None
        return dict.fromkeys(KINDS, spread) if spread else {}  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for name, kind in KINDS.items():
            module = kind(_WIDTH, _WIDTH)
            before = module.weight.detach().clone()
            model._init_weights(module)
            if not torch.equal(before, module.weight):
                found[name] = _of(module.weight)
    return found


def of_model(model: torch.nn.Module) -> dict[str, list[float]]:
    """By class, (count, sum, sum of squares) of what this rank holds of some modules: they add up over ranks."""
    found: dict[str, list[float]] = {}
    for name, kind in KINDS.items():
        every = [w for _, w in modules_with_weights(model, kind)]
        step = max(1, len(every) // _MOST_MODULES)
        parts = [sharded[0] for w in every[::step] if (sharded := shard_of(w)) is not None]
        made = [_of(part[:: max(1, part.numel() // _MOST_ELEMENTS)]) for part in parts if part.numel()]
        if made:
            found[name] = [sum(s.count for s in made), sum(s.total for s in made), sum(s.squares for s in made)]
    return found


def _of(tensor: torch.Tensor) -> Spread:
    values = tensor.detach().double()
    return Spread(float(values.numel()), float(values.sum()), float((values * values).sum()))
