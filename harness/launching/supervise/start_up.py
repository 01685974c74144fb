# SPDX-License-Identifier: Apache-2.0
"""The activity of starting ranks, in one line, from their statuses. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping

from harness.progress import START_UP
from harness.run_records.rank_statuses import RankStatus


def describe_start_up(statuses: Mapping[int, RankStatus], world_size: int) -> str:
    """The phase of the rank that is furthest behind, and how many are in it where not all are; empty once all have
    taken a step or one has ended.
    """
    if any(status.is_final for status in statuses.values()):
        return ""
    activities = [_activity_of(statuses.get(rank)) for rank in range(world_size)]
    behind = min(activities)
    if behind == len(START_UP):
        return ""
    count = activities.count(behind)
    return START_UP[behind] + (f" ({count} of {world_size} ranks)" if count < world_size else "")


def _activity_of(status: RankStatus | None) -> int:
    """The index of its activity in START_UP; past the last one if it is not there, since the rank then trains."""
    if status is None:
        return 0
    return START_UP.index(status.activity) if status.activity in START_UP else len(START_UP)
