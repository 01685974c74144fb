"""A collective that timed out -> the ranks that did not come to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from harness.diagnosis.diagnosis_types import LogEvent


def find_missing_ranks(events: Sequence[LogEvent], ranks: Iterable[int], world: int) -> tuple[list[int], str]:
    """(the ranks that were missing, how that is known); ([], "") where it cannot be told.

    A rank is behind when the last collective that it started has a lower number than the others'; where nobody says
    numbers, those ranks are missing that did not complain of the time-out while most of the others did.
    """
    told = [e for e in events if e.cause == "LG070" and e.rank is not None]
    started = {e.rank: int(e.details["enqueued"]) for e in told if "enqueued" in e.details and e.rank is not None}
    behind = _find_ranks_behind(started)
    if behind:
        return behind, "the last collective that they started is an earlier one than the others'"
    stood = {e.rank: int(e.details["seq"]) for e in told if "seq" in e.details and e.rank is not None}
    behind = _find_ranks_behind(stood)
    if behind:
        return behind, "they waited in an earlier collective than the others"
    complained = {e.rank for e in told if e.rank is not None}
    everybody = set(range(world)) if world else set(ranks)
    silent = sorted(everybody - complained)
    if complained and silent and (len(silent) * 2 < len(everybody) or len(everybody) == 2):
        return silent, "they did not complain of the time-out, and the others did"
    return [], ""


def _find_ranks_behind(numbers: dict[int, int]) -> list[int]:
    """The ranks below the number that most have; none where that is less than half of them."""
    if len(numbers) < 2:
        return []
    usual, count = Counter(numbers.values()).most_common(1)[0]
    low = sorted(rank for rank, number in numbers.items() if number < usual)
    return low if low and (count * 2 > len(numbers) or len(numbers) == 2) else []
