# SPDX-License-Identifier: Apache-2.0
"""Intervals of time: what is busy when, what is free, and how much of one kind of work nothing else hides."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

Interval = tuple[float, float]


class SharedResource:
    """A link, a copy engine, a disk or the GPU's multiprocessors: work takes the time that earlier work left free.

    Work that is ready while other work has the resource waits for it, and goes on in its gaps: the sum is what the
    resource has, whoever comes first.
    """

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def reserve(self, ready: float, seconds: float) -> Interval:
        """The begin and the end of so many seconds of work that may begin at `ready`."""
        starts, ends = self._starts, self._ends
        if not ends or ready >= ends[-1]:
            self._append(ready, ready + seconds)
            return ready, ready + seconds
        begin: float | None = None
        time, left, number = ready, seconds, bisect_right(ends, ready)
        while number < len(starts):
            gap = starts[number] - time
            if gap > 0:
                begin = time if begin is None else begin
                if left <= gap:
                    break
                left -= gap
            time = ends[number]
            number += 1
        begin = time if begin is None else begin
        self._insert(begin, time + left)
        return begin, time + left

    def forget_before(self, time: float) -> None:
        """Drop what ended before: nothing that comes is ready earlier."""
        number = bisect_left(self._ends, time)
        if number > 64:
            del self._starts[:number], self._ends[:number]

    def _append(self, start: float, end: float) -> None:
        if self._ends and start <= self._ends[-1]:
            self._ends[-1] = max(end, self._ends[-1])
        else:
            self._starts.append(start)
            self._ends.append(end)

    def _insert(self, start: float, end: float) -> None:
        """All between `start` and `end` is busy from now on."""
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as intervals that do not overlap, in order."""
    result: list[Interval] = []
    for start, end in sorted(intervals):
        if result and start <= result[-1][1]:
            if end > result[-1][1]:
                result[-1] = result[-1][0], end
        elif end > start:
            result.append((start, end))
    return result


def subtract(intervals: Sequence[Interval], taken: Sequence[Interval]) -> list[Interval]:
    """The time of `intervals` outside `taken`; both are unions."""
    result: list[Interval] = []
    number = 0
    for interval_start, end in intervals:
        start = interval_start
        while number < len(taken) and taken[number][1] <= start:
            number += 1
        later = number
        while later < len(taken) and taken[later][0] < end:
            if taken[later][0] > start:
                result.append((start, taken[later][0]))
            start = max(start, taken[later][1])
            later += 1
        if start < end:
            result.append((start, end))
    return result


def total(intervals: Iterable[Interval]) -> float:
    """Seconds of intervals that do not overlap."""
    return sum(end - start for start, end in intervals)


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The part of each interval in a window."""
    first, last = window
    return [(max(first, start), min(last, end)) for start, end in intervals if start < last and end > first]


def exposed_seconds(kinds: Mapping[str, Sequence[Interval]], order: Sequence[str]) -> dict[str, float]:
    """Seconds of each kind that neither a kind before it in `order` nor another interval of itself covers."""
    covered: list[Interval] = []
    result: dict[str, float] = {}
    for kind in order:
        own = union(kinds.get(kind, ()))
        result[kind] = total(subtract(own, covered))
        covered = union([*covered, *own])
    return result
