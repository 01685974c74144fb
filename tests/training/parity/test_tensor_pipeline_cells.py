# SPDX-License-Identifier: Apache-2.0
"""Tensor ranks in pipeline stages train what one plain process trains: six of the sixty drawn cells.

All of them: `python benchmarks/parity.py --tensor-pipelines`. One job of four forked ranks; about a minute.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

import tests.support.training.parity_cases as table
import tests.support.training.tensor_pipeline_cells as cells
from harness.plan.planner import make_plan
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_runs import Result, run, start_forked
from tests.support.training.runtime_helpers import metric_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the run directory of each case, by its name."""
    return tmp_path_factory.mktemp("tensor-pipelines")


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, folder: Path) -> dict[str, Result]:
    """Of each case by its name."""
    return {result.case.name: result for result in run(cells.FEW, folder, start_forked(forked))}


@pytest.mark.parametrize("case", cells.FEW, ids=lambda c: c.name)
def test_losses_are_those_of_one_plain_process(case: table.Case, results: dict[str, Result]) -> None:
    result = results[case.name]
    assert result.error is None
    assert result.difference <= table.bound(case)


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("case", cells.FEW, ids=lambda c: c.name)
def test_the_fullest_rank_holds_the_bytes_that_are_planned(case: table.Case, folder: Path) -> None:
    spec = json.loads((folder / case.name / "spec.resolved.json").read_text())["spec"]
    memory = make_plan(
        resolve_run(RunSpec.model_validate(spec), world_size=case.ranks), folder / case.name, "cpu"
    ).memory
    assert memory
    planned: Counter[str] = Counter()
    for item in memory.items:
        planned[item.kind] += item.bytes
    held = next(line["states"] for line in metric_lines(folder / case.name, "memory") if "states" in line)
    assert {"gpu.parameters", "gpu.master", "gpu.states"} & set(held)
    assert {name: planned[name.partition(".")[2]] for name in held} == held


def test_the_cells_cover_all_pairs_of_settings() -> None:
    drawn = cells.draw_cells()
    for (first, values), (second, others) in combinations(cells.FACTORS.items(), 2):
        covered = {(str(cell[first]), str(cell[second])) for cell in drawn}
        missing = {(str(a), str(b)) for a in values for b in others} - covered
        assert missing <= {("0", "bf16")}, (first, second)
    assert sum(cell["ranks"] == 8 for cell in drawn) <= cells.MOST_ON_EIGHT
