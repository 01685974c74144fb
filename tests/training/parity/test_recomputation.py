# SPDX-License-Identifier: Apache-2.0
"""A part of the layers recomputed, attention kept, MLPs in tiles: the losses of one plain process. Two forked ranks, all
cases in one job: about a minute.
"""

from __future__ import annotations

import pytest

import tests.support.training.parity_cases as table
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_runs import Result, run, start_forked


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Of each case by its name."""
    return {
        r.case.name: r for r in run(table.RECOMPUTATION, tmp_path_factory.mktemp("recomputed"), start_forked(forked))
    }


@pytest.mark.parametrize("case", table.RECOMPUTATION, ids=lambda c: c.name)
def test_losses_are_those_of_one_plain_process(case: table.Case, results: dict[str, Result]) -> None:
    result = results[case.name]
    assert result.error is None
    assert result.difference <= table.bound(case)
