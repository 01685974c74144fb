# SPDX-License-Identifier: Apache-2.0
"""The trial that `benchmarks/releases.py` makes of each release, on the installed one. 2 ranks, seconds."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.release_cases import CASES, WRONG, case
from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "release_trial.py"


def test_what_is_right_comes_out_right_and_what_is_wrong_wrong(forked: ForkedRanks, tmp_path: Path) -> None:
    right = ["stage 2, fp32, 4 parts, engine", "stage 3, bf16, 2 parts, trainer"]
    summed = case(1, gradient_allreduce_op="sum")
    asked, out = tmp_path / "cases.json", tmp_path / "out.json"
    asked.write_text(json.dumps([summed, *(CASES[name] for name in right)]))
    forked.run(JOB, str(out), str(asked), ranks=2)
    found = json.loads(out.read_text())["results"]
    assert found[0]["difference"] > WRONG
    assert [name for name, one in zip(right, found[1:], strict=True) if one["difference"] > WRONG] == []
