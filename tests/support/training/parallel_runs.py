# SPDX-License-Identifier: Apache-2.0
"""Runs a table of `parallel_cases` on forked ranks, cases of the same degrees in the same processes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tests.support.training.parallel_cases as table
from tests.support.training.runtime_helpers import JOBS

JOB = JOBS / "parallel_many.py"
WRITE_MODELS = JOBS / "parallel_models.py"


@dataclass(frozen=True, slots=True)
class Result:
    """How far a case is from a plain process, each number the largest relative difference over the steps."""

    case: table.Case
    error: str | None
    loss: float
    norm: float
    """NaN where DeepSpeed reports no norm: stage 0 in fp32."""
    eval: float
    seconds: float
    in_chunks: bool = False
    """Did the head compute the loss in chunks?"""

    @property
    def passed(self) -> bool:
        loss, norm = self.case.bounds
        return self.error is None and self.loss <= loss and self.eval <= loss and not self.norm > norm


def run(cases: Sequence[table.Case], folder: Path, start: Callable[..., Any]) -> list[Result]:
    """`start(script, *arguments, ranks=N)` runs a script on ranks; a run directory a case is made below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    models, text = folder / "models", table.write_text(folder / "text.txt")
    missing = [shape for shape in dict.fromkeys(c.shape for c in cases) if not (models / shape).exists()]
    if missing:
        start(WRITE_MODELS, str(models), *missing, ranks=1)
    for case in cases:
        table.write_run(folder / case.name, case, models, text)
    for degrees in dict.fromkeys(c.degrees for c in cases):
        chosen = [c for c in cases if c.degrees == degrees]
        jobs = [
            {
                "run": str(folder / c.name),
                "model": str(models / c.shape),
                "bf16": c.precision == "bf16",
                "packed": c.packed,
                "skewed": c.skewed,
            }
            for c in chosen
        ]
        file = folder / f"jobs-{'-'.join(map(str, degrees))}.json"
        file.write_text(json.dumps(jobs))
        start(JOB, str(file), ranks=degrees[0])
    return [_compare(case, folder / case.name) for case in cases]


def _compare(case: table.Case, folder: Path) -> Result:
    file = folder / "outcome.json"
    outcome = json.loads(file.read_text()) if file.exists() else {"error": "did not run", "seconds": math.nan}
    if outcome["error"]:
        return Result(case, outcome["error"], math.nan, math.nan, math.nan, outcome["seconds"])
    norms = list(zip(outcome["norms"], outcome["plain_norms"], strict=True))
    reported = [pair for pair in norms if pair[0] is not None]
    return Result(
        case,
        None,
        max(map(_relative, outcome["losses"], outcome["plain_losses"])),
        max((_relative(*pair) for pair in reported), default=math.nan),
        _relative(outcome["eval"], outcome["plain_eval"]),
        outcome["seconds"],
        outcome["in_chunks"],
    )


def _relative(ours: float, plain: float) -> float:
    return abs(ours - plain) / abs(plain) if math.isfinite(ours) else math.inf
