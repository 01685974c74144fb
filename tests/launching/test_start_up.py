# SPDX-License-Identifier: Apache-2.0
"""The activity of starting ranks, from their statuses. Needs nothing; milliseconds."""

from __future__ import annotations

import pytest

from harness.launching.supervise.monitor import describe_start_up
from harness.progress import START_UP
from harness.run_records.rank_statuses import RankStatus


def status(rank: int, activity: str, state: str = "starting") -> RankStatus:
    return RankStatus(rank, "h", 1000 + rank, state, 0, 0.0, activity=activity)


@pytest.mark.parametrize(
    ("activities", "expected"),
    [
        ([], START_UP[0]),
        ([START_UP[3]], f"{START_UP[0]} (1 of 2 ranks)"),
        ([START_UP[3], START_UP[3]], START_UP[3]),
        ([START_UP[5], START_UP[3]], f"{START_UP[3]} (1 of 2 ranks)"),
        (["", START_UP[-1]], f"{START_UP[-1]} (1 of 2 ranks)"),
        (["", ""], ""),
        (["of a later version", ""], ""),
    ],
)
def test_the_rank_that_is_furthest_behind_is_described(activities, expected):
    statuses = {rank: status(rank, activity) for rank, activity in enumerate(activities)}
    assert describe_start_up(statuses, 2) == expected


def test_nothing_is_described_once_a_rank_has_failed():
    assert describe_start_up({0: status(0, START_UP[3], "failed")}, 2) == ""
