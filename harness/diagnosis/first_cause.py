"""Events -> the one that came first. Pure arithmetic on values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.diagnosis.diagnosis_types import LogEvent

MAX_PROGRESS_AFTER_ERROR = 4
"""A job that shows more progress than this after an error, by each that shows any, has outlived it; with as much again
as there are ranks, which may all have been before their next collective."""


@dataclass(frozen=True, slots=True)
class CauseSelection:
    """The event that came first; `contested` where another one may have; `outlived` are errors that the job went on
    after.
    """

    first: LogEvent | None
    is_contested: bool = False
    survived_errors: tuple[LogEvent, ...] = ()
    others: tuple[LogEvent, ...] = ()


def select_first_cause(
    events: Sequence[LogEvent],
    progress: Sequence[int],
    num_ranks: int,
    num_writers: int = 1,
    *,
    clock_went_back: bool,
    is_completed: bool,
) -> CauseSelection:
    """The first cause. `progress` is how many signs of progress each log has, `num_talkers` how many wrote them."""
    margin = MAX_PROGRESS_AFTER_ERROR * max(1, num_writers) + num_ranks // len(progress)
    outlived = [e for e in events if is_completed or progress[e.log_index] - e.progress > margin]
    alive = [e for e in events if e not in outlived and e.level != "hint"]
    killed = _find_killed_rank(alive)
    for level in ("root", "end", "echo"):
        of_level = [e for e in alive if e.level == level]
        if level == "end":
            of_level = [e for e in of_level if e.cause not in ("LG074", "LG069")]
        if of_level:
            ordered = _sort_events(of_level, clock_went_back=clock_went_back)
            first, contested = _pick_first(ordered)
            contested = contested or progress[first.log_index] - first.progress > 2 * max(1, num_writers)
            if killed is not None and level == "root" and _may_have_been_caught(first, killed):
                first, contested = killed, True
            return CauseSelection(first, contested, tuple(outlived), tuple(alive))
    ends = _sort_events([e for e in alive if e.level == "end"], clock_went_back=clock_went_back)
    asked = [e for e in ends if e.cause == "LG069"]
    last = asked or ends
    return CauseSelection(last[0] if last else None, False, tuple(outlived), tuple(alive))


def _sort_events(events: list[LogEvent], *, clock_went_back: bool) -> list[LogEvent]:
    """By the clock where all events have one of their own (or the log is several ones, put one after the other), else
    as they stand.
    """
    timed = all(e.time is not None and (e.has_own_time or clock_went_back) for e in events)
    return sorted(events, key=lambda e: ((e.time or 0.0) if timed else 0.0, e.line_number))


def _pick_first(ordered: Sequence[LogEvent]) -> tuple[LogEvent, bool]:
    """A known cause comes before an unknown exception that may have been caught; one that was not is the first."""
    first = ordered[0]
    if first.level == "echo":
        timeouts = [e for e in ordered if e.cause == "LG070"]
        return (timeouts or list(ordered))[0], False
    known = [e for e in ordered if e.cause]
    if not first.cause and known and not (first.is_uncaught and known[0].rank != first.rank):
        return known[0], True
    rivals = {e.cause for e in known if e.cause != first.cause and e.rank != first.rank}
    return first, bool(rivals) and bool(first.cause)


def _find_killed_rank(events: Sequence[LogEvent]) -> LogEvent | None:
    """The launcher's word on a rank that a signal ended, which no launcher sends before it has said so."""
    return min((e for e in events if e.cause in ("LG003", "LG018")), key=lambda e: e.line_number, default=None)


def _may_have_been_caught(first: LogEvent, killed: LogEvent) -> bool:
    """A traceback without torch's mark of an uncaught one, of a rank that was not the one killed."""
    return bool(first.frames) and not first.is_uncaught and (first.rank is None or first.rank != killed.rank)
