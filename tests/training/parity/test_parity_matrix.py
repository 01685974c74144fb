# SPDX-License-Identifier: Apache-2.0
"""Every shape, ZeRO stage and offload tier trains what one plain process trains: a covering part of the matrix.

The whole of it, and 4 ranks: `python benchmarks/parity.py`. One job of two forked ranks, some seconds a case.
"""

from __future__ import annotations

import pytest

import tests.support.training.parity_cases as table
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_runs import Result, run, start_forked

CASES = table.covering()


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Of each case by its name."""
    return {r.case.name: r for r in run(CASES, tmp_path_factory.mktemp("parity"), start_forked(forked))}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_losses_are_those_of_one_plain_process(case: table.Case, results: dict[str, Result]) -> None:
    result = results[case.name]
    assert result.error is None
    assert result.difference <= table.bound(case)


@pytest.mark.parametrize("case", [c for c in CASES if c.tier.startswith("nvme")], ids=lambda c: c.name)
def test_what_is_on_nvme_was_there(case: table.Case, results: dict[str, Result]) -> None:
    """Else the small sizes hide that nothing is swapped: DeepSpeed keeps what is below 1 MiB."""
    assert results[case.name].swapped > 1 << 20


def test_the_losses_move(results: dict[str, Result]) -> None:
    """Else equality would prove nothing."""
    assert all(result.last_loss < 9.2 for result in results.values())


def test_the_part_covers_every_shape_stage_tier_and_format() -> None:
    part = table.covering()
    assert {c.shape for c in part} == set(table.SHAPES)
    ways = {(stage, tier) for stage in range(4) for tier in table.TIERS_OF_STAGE[stage]}
    for precision in ("fp32", "bf16"):
        assert {(c.stage, c.tier) for c in part if c.precision == precision} == ways
    assert set(part) < set(table.ALL)
