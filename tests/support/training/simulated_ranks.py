# SPDX-License-Identifier: Apache-2.0
"""Cases on the simulated device, each in a process of its own: a process simulates one device, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import JOBS

TOGETHER = 2


def simulate_cases(job: str, cases: dict[str, Any], folder: Path, simulated: ForkedRanks) -> dict[str, dict[str, Any]]:
    """Case -> {"answer"} or {"error"} by a script of `jobs`; `simulated` is a `ForkedRanks(imports="simulation")`."""
    answers = {}
    for start in range(0, len(cases), TOGETHER):
        names, place = list(cases)[start : start + TOGETHER], folder / str(start)
        place.mkdir()
        (place / "cases.json").write_text(json.dumps([cases[name] for name in names]), encoding="utf-8")
        simulated.run(JOBS / job, str(place / "cases.json"), str(place), ranks=len(names))
        for rank, name in enumerate(names):
            answers[name] = json.loads((place / f"{rank}.json").read_text(encoding="utf-8"))
    return answers
