"""Events -> the one that came first. Pure arithmetic on values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.diagnosis.values import Event

STILL_RUNNING = 4
"""A job that shows more progress than this after an error, by each that shows any, has outlived it; with as much again
as there are ranks, which may all have been before their next collective."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The event that came first; `contested` where another one may have; `outlived` are errors that the job went on
    after.
    """

    first: Event | None
    contested: bool = False
    outlived: tuple[Event, ...] = ()
    others: tuple[Event, ...] = ()


def choose(
    events: Sequence[Event],
    progress: Sequence[int],
    num_ranks: int,
    num_talkers: int = 1,
    *,
    went_back: bool,
    ended_well: bool,
) -> Choice:
    """The first cause. `progress` is how many signs of progress each log has, `num_talkers` how many wrote them."""
    margin = STILL_RUNNING * max(1, num_talkers) + num_ranks // len(progress)
    outlived = [e for e in events if ended_well or progress[e.log] - e.progress > margin]
    alive = [e for e in events if e not in outlived and e.level != "hint"]
    killed = _killed(alive)
    for level in ("root", "end", "echo"):
        of_level = [e for e in alive if e.level == level]
        if level == "end":
            of_level = [e for e in of_level if e.cause not in ("LG074", "LG069")]
        if of_level:
            ordered = _ordered(of_level, went_back=went_back)
            first, contested = _first(ordered)
            contested = contested or progress[first.log] - first.progress > 2 * max(1, num_talkers)
            if killed is not None and level == "root" and _may_be_caught(first, killed):
                first, contested = killed, True
            return Choice(first, contested, tuple(outlived), tuple(alive))
    ends = _ordered([e for e in alive if e.level == "end"], went_back=went_back)
    asked = [e for e in ends if e.cause == "LG069"]
    last = asked or ends
    return Choice(last[0] if last else None, False, tuple(outlived), tuple(alive))


def _ordered(events: list[Event], *, went_back: bool) -> list[Event]:
    """By the clock where all events have one of their own (or the log is several ones, put one after the other), else
    as they stand.
    """
    timed = all(e.time is not None and (e.own_time or went_back) for e in events)
    return sorted(events, key=lambda e: ((e.time or 0.0) if timed else 0.0, e.order))


def _first(ordered: Sequence[Event]) -> tuple[Event, bool]:
    """A known cause comes before an unknown exception that may have been caught; one that was not is the first."""
    first = ordered[0]
    if first.level == "echo":
        timeouts = [e for e in ordered if e.cause == "LG070"]
        return (timeouts or list(ordered))[0], False
    known = [e for e in ordered if e.cause]
    if not first.cause and known and not (first.uncaught and known[0].rank != first.rank):
        return known[0], True
    rivals = {e.cause for e in known if e.cause != first.cause and e.rank != first.rank}
    return first, bool(rivals) and bool(first.cause)


def _killed(events: Sequence[Event]) -> Event | None:
    """The launcher's word on a rank that a signal ended, which no launcher sends before it has said so."""
    return min((e for e in events if e.cause in ("LG003", "LG018")), key=lambda e: e.order, default=None)


def _may_be_caught(first: Event, killed: Event) -> bool:
    """A traceback without torch's mark of an uncaught one, of a rank that was not the one killed."""
    return bool(first.frames) and not first.uncaught and (first.rank is None or first.rank != killed.rank)
