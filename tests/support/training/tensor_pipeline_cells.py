# SPDX-License-Identifier: Apache-2.0
"""Sixty drawn ways to train with tensor and pipeline parallelism together, which cover all pairs of settings.

`benchmarks/parity.py --tensor-pipelines` trains them beside one plain process; the suite trains six.
"""

from __future__ import annotations

import json
import random
from itertools import combinations
from typing import Any

from tests.support.training.model_shapes import GPT2, LLAMA, NO_DROPOUT
from tests.support.training.parity_cases import GLOBAL_BATCH, MORE_SHAPES, VOCABULARY, Case

SEED, CELLS, MOST_ON_EIGHT = 32, 60, 12
FACTORS: dict[str, tuple[Any, ...]] = {
    "family": ("llama", "mistral", "qwen2", "qwen3", "phi3", "gpt2", "olmo2"),
    "tied": (True, False),
    "ranks": (4, 8),
    "stage": (0, 1),
    "precision": ("fp32", "bf16"),
    "accumulation": (1, 2, 4),
    "clip": (0.5, 0.0),
    "checkpointing": (False, True, {"recompute_every": 2}),
    "partition": ("parameters", "uniform", "type:Layer|Block"),
}
Cell = dict[str, Any]


def _shape(family: str, *, tied: bool) -> dict[str, Any]:
    fields = {**GPT2, **NO_DROPOUT} if family == "gpt2" else {"model_type": family, **LLAMA}
    extra = {"head_dim": 16} if family == "qwen3" else {}
    return {**fields, **extra, "vocab_size": VOCABULARY, "tie_word_embeddings": tied}


MORE_SHAPES.update(
    {
        f"{family}-{'tied' if tied else 'untied'}": _shape(family, tied=tied)
        for family in FACTORS["family"]
        for tied in (True, False)
    }
)


def _is_allowed(cell: Cell) -> bool:
    """Not bf16 at stage 0, whose checkpoints cannot be exported (PP017)."""
    return cell["stage"] == 1 or cell["precision"] == "fp32"


def _pairs(cell: Cell) -> set[tuple[str, str]]:
    return set(combinations([f"{name}={value}" for name, value in cell.items()], 2))


def draw_cells() -> list[Cell]:
    """The same ones each time: of forty candidates the one with most new pairs, until all are drawn."""
    draw, cells, covered = random.Random(SEED), list[Cell](), set[tuple[str, str]]()  # noqa: S311
    while len(cells) < CELLS:
        has_room = sum(cell["ranks"] == 8 for cell in cells) < MOST_ON_EIGHT
        candidates = [{name: draw.choice(values) for name, values in FACTORS.items()} for _ in range(40)]
        candidates = [c for c in candidates if _is_allowed(c) and c not in cells and (has_room or c["ranks"] == 4)]
        best = max(candidates, key=lambda c: len(_pairs(c) - covered))
        cells.append(best)
        covered |= _pairs(best)
    return cells


def to_case(cell: Cell) -> Case:
    """The case of `parity_cases`: two tensor ranks in each of two stages, the rest data parallel."""
    data = cell["ranks"] // 4
    train = {
        "per_device_train_batch_size": GLOBAL_BATCH // (cell["accumulation"] * data),
        "gradient_accumulation_steps": cell["accumulation"],
        "max_grad_norm": cell["clip"],
        "gradient_checkpointing": cell["checkpointing"],
    }
    parallel = {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "pipeline_partition_method": cell["partition"],
    }
    more = (("parallel", json.dumps(parallel)), ("train", json.dumps(train)))
    shape = f"{cell['family']}-{'tied' if cell['tied'] else 'untied'}"
    return Case(shape, cell["stage"], "none", cell["precision"], cell["ranks"], more)


CASES = tuple(to_case(cell) for cell in draw_cells())
FEW = tuple(case for case in CASES if case.ranks == 4)[:6]
"""Those that the suite trains."""
