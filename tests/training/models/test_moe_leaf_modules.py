# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts under ZeRO: the same numbers as one process, however unevenly the tokens are routed."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.support.training.parallel_cases as table
from tests.support.training import parallel_runs
from tests.support.training.forked_ranks import ForkedRanks

JOBS = Path(__file__).parents[1] / "jobs"


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[table.Case, parallel_runs.Result]:
    found = parallel_runs.run(table.CI_EXPERTS, tmp_path_factory.mktemp("experts"), forked.run)
    return {result.case: result for result in found}


@pytest.mark.parametrize("case", table.CI_EXPERTS, ids=lambda case: case.name)
def test_agrees_with_one_process(case: table.Case, results: dict[table.Case, parallel_runs.Result]) -> None:
    assert results[case].passed, results[case]


def test_experts_that_are_modules_of_their_own_do_not_wait_for_each_other(forked: ForkedRanks) -> None:
    """Each rank sends all tokens to another expert; without a leaf module the ranks gather different weights."""
    forked.run(JOBS / "expert_modules.py", ranks=2)


def test_new_fused_experts_are_drawn_as_without_zero(forked: ForkedRanks) -> None:
    forked.run(JOBS / "new_experts.py", "mixtral", "qwen2_moe", "qwen3_moe", ranks=2)
