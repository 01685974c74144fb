# SPDX-License-Identifier: Apache-2.0
"""Events -> the first one. Pure functions of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.diagnosis.diagnosis_types import LogEvent

MAX_PROGRESS_AFTER_ERROR = 4
"""A job with more signs of progress after an error, for each writer, has survived it. One sign a rank is added:
all ranks may have been before their next collective."""


@dataclass(frozen=True, slots=True)
class CauseSelection:
    """The first event. `is_contested`: another event may be the first. The job continued after `survived_errors`."""

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
    """The first cause. `progress` counts the signs of progress of each log, `num_writers` those who wrote them."""
    margin = MAX_PROGRESS_AFTER_ERROR * max(1, num_writers) + num_ranks // len(progress)
    survived_errors = [e for e in events if is_completed or progress[e.log_index] - e.progress > margin]
    candidates = [e for e in events if e not in survived_errors and e.level != "hint"]
    killed_event = _find_killed_rank(candidates)
    for level in ("root", "end", "echo"):
        level_events = [e for e in candidates if e.level == level]
        if level == "end":
            level_events = [e for e in level_events if e.cause not in ("LG074", "LG069")]
        if level_events:
            ordered_events = _sort_events(level_events, clock_went_back=clock_went_back)
            first, is_contested = _pick_first(ordered_events)
            is_contested = is_contested or progress[first.log_index] - first.progress > 2 * max(1, num_writers)
            if killed_event is not None and level == "root" and _may_have_been_caught(first, killed_event):
                first, is_contested = killed_event, True
            return CauseSelection(first, is_contested, tuple(survived_errors), tuple(candidates))
    ends = _sort_events([e for e in candidates if e.level == "end"], clock_went_back=clock_went_back)
    stop_requests = [e for e in ends if e.cause == "LG069"]
    choices = stop_requests or ends
    return CauseSelection(choices[0] if choices else None, False, tuple(survived_errors), tuple(candidates))


def _sort_events(events: list[LogEvent], *, clock_went_back: bool) -> list[LogEvent]:
    """By time where every event has its own (or where several logs follow each other in one), else by line."""
    has_times = all(e.time is not None and (e.has_own_time or clock_went_back) for e in events)
    return sorted(events, key=lambda e: ((e.time or 0.0) if has_times else 0.0, e.line_number))


def _pick_first(events: Sequence[LogEvent]) -> tuple[LogEvent, bool]:
    """A known cause comes before an unknown exception, unless that one is uncaught and of another rank."""
    first = events[0]
    if first.level == "echo":
        timeouts = [e for e in events if e.cause == "LG070"]
        return (timeouts or list(events))[0], False
    known_events = [e for e in events if e.cause]
    if not first.cause and known_events and not (first.is_uncaught and known_events[0].rank != first.rank):
        return known_events[0], True
    rivals = {e.cause for e in known_events if e.cause != first.cause and e.rank != first.rank}
    return first, bool(rivals) and bool(first.cause)


def _find_killed_rank(events: Sequence[LogEvent]) -> LogEvent | None:
    """The launcher's message about a rank that a signal ended. A launcher that sends the signal logs that first."""
    return min((e for e in events if e.cause in ("LG003", "LG018")), key=lambda e: e.line_number, default=None)


def _may_have_been_caught(first: LogEvent, killed_event: LogEvent) -> bool:
    """A traceback without torch's mark of an uncaught one, of another rank than the killed one."""
    return bool(first.frames) and not first.is_uncaught and (first.rank is None or first.rank != killed_event.rank)
