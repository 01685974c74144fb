# SPDX-License-Identifier: Apache-2.0
"""AT031 on two ranks: engines over weights that were loaded from files, and over some that were not. Ten seconds."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "source_weights.py"


def test_weights_that_were_not_loaded_are_named(forked: ForkedRanks, tmp_path: Path) -> None:
    forked.run(JOB, str(tmp_path / "out.json"), str(tmp_path))
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["loaded"] == results["loaded at stage 1"] == "holds: {'weights': 4}"
    for case, name in (
        ("one left out", "2.weight"),
        ("one left out at stage 1", "2.weight"),
        ("a bias left out", "0.bias"),
    ):
        assert results[case].startswith("differs: 1 of 4 sampled weights are not those"), results
        assert f"`{name}`" in results[case]
    assert results["other names"].startswith("skipped: no weight file")
