# SPDX-License-Identifier: Apache-2.0
"""Tensor ranks in pipeline stages train what one plain process trains over 20 steps: six of the sixty drawn cells.

All of them: `python benchmarks/parity.py --tensor-pipelines`. One job of four forked ranks; about a minute.
"""

from __future__ import annotations

from itertools import combinations

import pytest

import tests.support.training.parity_cases as table
import tests.support.training.tensor_pipeline_cells as cells
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_runs import Result, run, start_forked


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Of each case by its name."""
    return {r.case.name: r for r in run(cells.FEW, tmp_path_factory.mktemp("tensor-pipelines"), start_forked(forked))}


@pytest.mark.parametrize("case", cells.FEW, ids=lambda c: c.name)
def test_losses_are_those_of_one_plain_process(case: table.Case, results: dict[str, Result]) -> None:
    result = results[case.name]
    assert result.error is None
    assert result.difference <= table.bound(case)


def test_the_cells_cover_all_pairs_of_settings() -> None:
    drawn = cells.draw_cells()
    for (first, values), (second, others) in combinations(cells.FACTORS.items(), 2):
        covered = {(str(cell[first]), str(cell[second])) for cell in drawn}
        missing = {(str(a), str(b)) for a in values for b in others} - covered
        assert missing <= {("0", "bf16")}, (first, second)
    assert sum(cell["ranks"] == 8 for cell in drawn) <= cells.MOST_ON_EIGHT
