# SPDX-License-Identifier: Apache-2.0
"""A collective that timed out -> the ranks that are missing in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from harness.diagnosis.diagnosis_types import LogEvent


def find_missing_ranks(events: Sequence[LogEvent], ranks: Iterable[int], world_size: int) -> tuple[list[int], str]:
    """(the missing ranks, the evidence); ([], "") where they are unknown.

    A rank is behind when the last collective that it started has a lower number than the others'. In a log without
    numbers, the ranks without a time-out are missing, if most ranks have one.
    """
    timeouts = [e for e in events if e.cause == "LG070" and e.rank is not None]
    enqueued_numbers = {
        e.rank: int(e.details["enqueued"]) for e in timeouts if "enqueued" in e.details and e.rank is not None
    }
    ranks_behind = _find_ranks_behind(enqueued_numbers)
    if ranks_behind:
        return ranks_behind, "the last collective that they started is an earlier one than the others'"
    sequence_numbers = {e.rank: int(e.details["seq"]) for e in timeouts if "seq" in e.details and e.rank is not None}
    ranks_behind = _find_ranks_behind(sequence_numbers)
    if ranks_behind:
        return ranks_behind, "they waited in an earlier collective than the others"
    ranks_with_timeout = {e.rank for e in timeouts if e.rank is not None}
    all_ranks = set(range(world_size)) if world_size else set(ranks)
    silent_ranks = sorted(all_ranks - ranks_with_timeout)
    if ranks_with_timeout and silent_ranks and (len(silent_ranks) * 2 < len(all_ranks) or len(all_ranks) == 2):
        return silent_ranks, "they did not complain of the time-out, and the others did"
    return [], ""


def _find_ranks_behind(numbers: dict[int, int]) -> list[int]:
    """The ranks below the most frequent number; none where fewer than half have it."""
    if len(numbers) < 2:
        return []
    mode, count = Counter(numbers.values()).most_common(1)[0]
    ranks_behind = sorted(rank for rank, number in numbers.items() if number < mode)
    return ranks_behind if ranks_behind and (count * 2 > len(numbers) or len(numbers) == 2) else []
