# SPDX-License-Identifier: Apache-2.0
"""The cells of the grid: settings of one small training, and a covering array of them.

At each ZeRO stage, each pair of values of two other dimensions stands in at least one cell; so stage and accumulation
are covered completely. The draw is seeded, so that every release trains the same cells.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

Cell = dict[str, str]

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "stage": ("0", "1", "2", "3"),
    "offload": ("none", "cpu", "ratio", "nvme"),
    "accumulation": ("1", "2", "4"),
    "format": ("fp32", "bf16"),
    "clipping": ("off", "on"),
    "tied": ("no", "yes"),
    "reuse": ("once", "twice", "checkpointed", "pair", "chain", "outside"),
    "unused": ("none", "never", "sometimes"),
    "evaluation": ("no", "yes"),
    "caller": ("script", "trainer"),
    "resumed": ("no", "yes"),
}
"""Each dimension's values, the plainest first.

`reuse`: a block is used once or twice in a forward pass, or twice under reentrant activation checkpointing; or the engine
is called twice before one backward pass, with rows of their own or the second time with the output of the first; or the
block is used in the engine's forward pass and once more outside. `unused`: a parameter has a gradient in no step, or in the first micro-batch of
a step alone. `evaluation`: a forward pass without gradients precedes each micro-batch. `caller`: a script as DeepSpeed
documents it, or the Trainer, which divides the loss itself and passes `scale_wrt_gas=False`. `resumed`: the first step
is saved and another engine loads it.
"""
SEED = 20261126
_CANDIDATES = 400


def is_valid(cell: Cell) -> bool:
    """Can DeepSpeed be asked for this? Optimizers are offloaded from stage 1 on; by a ratio, or to NVMe, at stage 3."""
    allowed = {"none": "0123", "cpu": "123", "ratio": "3", "nvme": "3"}
    return cell["stage"] in allowed[cell["offload"]]


def needs_ops(cell: Cell) -> bool:
    """Does the cell need an op that is compiled for a minute: `cpu_adam` or `async_io`?"""
    return cell["offload"] in ("ratio", "nvme")


def covering_array(seed: int = SEED) -> list[Cell]:
    """Cells with each valid pair of values at each stage: of some hundred drawn cells, each time the one with most new pairs."""
    draw = random.Random(seed)  # noqa: S311  no secret
    missing = set(_all_triples())
    cells: list[Cell] = []
    while missing:
        wanted = dict(min(missing))
        candidates = [_drawn(draw, wanted) for _ in range(_CANDIDATES)]
        best = max(candidates, key=lambda cell: len(missing.intersection(_triples(cell))))
        missing.difference_update(_triples(best))
        cells.append(best)
    return cells


_Triple = tuple[tuple[str, str], ...]


def _drawn(draw: random.Random, wanted: Cell) -> Cell:
    while True:
        cell = {name: draw.choice(values) for name, values in DIMENSIONS.items()} | wanted
        if is_valid(cell):
            return cell


def _triples(cell: Cell) -> Iterator[_Triple]:
    """The pairs of values of a cell, each with its stage."""
    others = [(name, value) for name, value in cell.items() if name != "stage"]
    for pair in combinations(others, 2):
        yield (("stage", cell["stage"]), *pair)


def _all_triples() -> Iterator[_Triple]:
    plain = {name: values[0] for name, values in DIMENSIONS.items()}
    names = [name for name in DIMENSIONS if name != "stage"]
    for stage in DIMENSIONS["stage"]:
        for one, other in combinations(names, 2):
            for a in DIMENSIONS[one]:
                for b in DIMENSIONS[other]:
                    if is_valid(plain | {"stage": stage, one: a, other: b}):
                        yield (("stage", stage), (one, a), (other, b))
