# SPDX-License-Identifier: Apache-2.0
"""Selects the first cause among the events of a log. Pure functions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.diagnosis.catalogue import causes_by_id, causes_with
from harness.diagnosis.diagnosis_types import STOP_CAUSE, LogEvent, shows_rank

MAX_PROGRESS_AFTER_ERROR = 4
"""A job with more signs of progress after an error, for each writer, has survived it. One sign per rank is
added: every rank may print one more before its next collective."""


_MAX_ATTEMPTS = 100
"""If a job was restarted more often, only its last attempts are examined."""
FIRST_DATE = 31 * 86400.0
"""Times below have no date, and cannot be compared with those that have one."""
_OOM_CAUSE = "LG002"
"""The kernel reports it in several lines, of which one names the process."""
_GPU_MEMORY_CAUSE = "LG001"
_LOST_PEER_CAUSE, _FAILED_CAUSE = "LG073", "LG074"
KILLED_CAUSES = ("LG003", "LG018")
_ABORT_CAUSE, _LINES_OF_ABORT = "LG211", 3
_MAX_PROGRESS_OF_CERTAIN = 1


@dataclass(frozen=True, slots=True)
class CauseSelection:
    """The first event. `is_contested`: another event may be the first. The job continued after `survived_errors`.
    `earlier` has the first event of each attempt before the last one.
    """

    first: LogEvent | None
    is_contested: bool = False
    survived_errors: tuple[LogEvent, ...] = ()
    others: tuple[LogEvent, ...] = ()
    earlier: tuple[LogEvent, ...] = ()

    def is_named_by(self, first: LogEvent) -> bool:
        """Does the message of the first event allow no other cause?"""
        return bool(first.cause) and first.sure and not self.is_contested and first.level == "root"


@dataclass(frozen=True, slots=True)
class LogCounts:
    """What logs show besides events. By log: its signs of `progress`, and in `end_counts` how often it says that the
    training ended well, and that a smaller batch is tried. `num_writers` wrote the signs. `reported_rank` failed first
    according to the launcher.
    """

    progress: Sequence[int]
    num_ranks: int
    num_writers: int
    clock_went_back: bool
    is_completed: bool
    reported_rank: int | None
    end_counts: Sequence[tuple[int, int]]


def select_first_cause(events: Sequence[LogEvent], counts: LogCounts) -> CauseSelection:
    """The first cause of the last attempt that failed."""
    hints = [e for e in events if e.level == "hint"]
    by_attempt: dict[int, list[LogEvent]] = defaultdict(list)
    for event in events:
        if event.level != "hint":
            by_attempt[event.attempt].append(event)
    selections = [
        _select_in_attempt([*by_attempt[attempt], *hints], counts)
        for attempt in sorted(by_attempt)[-_MAX_ATTEMPTS:] or [0]
    ]
    failed = [selection for selection in selections if selection.first is not None]
    if not failed:
        return replace(selections[-1], survived_errors=tuple(e for s in selections for e in s.survived_errors))
    earlier = tuple(selection.first for selection in failed[:-1] if selection.first is not None)
    return replace(failed[-1], earlier=earlier)


def _select_in_attempt(events: Sequence[LogEvent], counts: LogCounts) -> CauseSelection:
    progress = counts.progress
    margin = MAX_PROGRESS_AFTER_ERROR * max(1, counts.num_writers) + counts.num_ranks // len(progress)
    last_end = max((e.num_ends for e in events if e.level == "end"), default=-1)
    survived_errors = [e for e in events if _was_survived(e, last_end, margin, counts)]
    silent_causes = causes_with("silent")
    silent_faults = [
        e
        for e in events
        if e.cause in silent_causes
        and (
            e.cause not in causes_with("recoverable")
            or "collapsed" in e.details
            or progress[e.log_index] - e.progress <= margin
        )
    ]
    silent_ids = {id(e) for e in events if e.cause in silent_causes}
    fault_ids = set(map(id, silent_faults))
    survived_errors = [e for e in survived_errors if id(e) not in fault_ids]
    passed_ids = silent_ids.union(map(id, survived_errors))
    candidates = [e for e in events if id(e) not in passed_ids and e.level != "hint"]
    killed = [e for e in candidates if e.cause in KILLED_CAUSES]
    killed_event = min(killed, key=lambda e: e.line_number, default=None)
    for level in ("root", "end", "echo"):
        level_events = [e for e in candidates if e.level == level]
        if level == "end":
            level_events = [e for e in level_events if e.cause not in causes_with("weak-end")]
        if level == "echo" and _follow_from_stop(level_events, candidates, events):
            break
        if level_events:
            ordered_events = _sort_events(level_events, counts.clock_went_back, counts.reported_rank)
            first, is_contested = _pick_first(ordered_events)
            is_contested = is_contested or progress[first.log_index] - first.progress > 2 * max(1, counts.num_writers)
            is_contested = is_contested or _may_be_survived(first, candidates, progress)
            may_be_caught = level == "root" and first.frames and not first.is_uncaught
            if killed_event is not None and may_be_caught and (first.rank is None or first.rank != killed_event.rank):
                first, is_contested = killed_event, True
            first = next(
                (e for e in level_events if first.cause == e.cause == _OOM_CAUSE and "pid" in e.details), first
            )
            if broken := _find_broken_gpu(first, level_events):
                first, is_contested = broken, True
            return CauseSelection(first, is_contested, tuple(survived_errors), tuple(candidates))
    ends = _sort_events([e for e in candidates if e.level == "end"], counts.clock_went_back)
    choices = sorted(ends, key=lambda e: (_order_of(e), not shows_rank(e.frames)))
    choices = silent_faults or choices
    return CauseSelection(choices[0] if choices else None, False, tuple(survived_errors), tuple(candidates))


def _sort_events(events: list[LogEvent], clock_went_back: bool, reported: int | None = None) -> list[LogEvent]:
    """By time where every event has its own (or where several logs follow each other in one), else by line. If several
    logs were read, the rank that the launcher reports comes first.
    """
    has_times = all(e.time is not None and (e.has_own_time or clock_went_back) for e in events)
    has_dates = {e.time >= FIRST_DATE for e in events if e.time is not None}
    if has_times and len(has_dates) < 2:
        return sorted(events, key=lambda e: (e.time or 0.0, e.line_number))
    is_one_log = len({e.log_index for e in events}) < 2
    return sorted(events, key=lambda e: (not is_one_log and e.rank != reported, e.line_number))


def _pick_first(events: Sequence[LogEvent]) -> tuple[LogEvent, bool]:
    """A known cause comes before an unknown exception, unless that one is uncaught and of another rank."""
    first = events[0]
    if first.level == "echo":
        return min(events, key=_order_of), False
    if first.cause == _ABORT_CAUSE and (reason := _find_reason_of_abort(first, events)) is not None:
        return reason, False
    known_events = [e for e in events if e.cause]
    if not first.cause and known_events and not (first.is_uncaught and known_events[0].rank not in (None, first.rank)):
        earlier = itertools.takewhile(lambda e: e is not known_events[0], events)
        return known_events[0], any(e.text != known_events[0].text for e in earlier)
    rivals = {e.cause for e in known_events if e.cause != first.cause and e.rank != first.rank}
    return first, bool(rivals) and bool(first.cause)


def _find_reason_of_abort(first: LogEvent, events: Sequence[LogEvent]) -> LogEvent | None:
    """The line below an abort that gives its reason, `what(): ...`; None where no rule knows it."""
    later = (e for e in events if 0 < e.line_number - first.line_number <= _LINES_OF_ABORT and e.rank == first.rank)
    return next((e for e in later if e.cause and e.cause != _ABORT_CAUSE and e.log_index == first.log_index), None)


def _order_of(event: LogEvent) -> int:
    """Of the last ends and of echoes, the one that says most comes first."""
    cause = causes_by_id().get(event.cause)
    return _LAST if cause is None or cause.order is None else cause.order


_LAST = 100


def _was_survived(event: LogEvent, last_end: int, margin: int, counts: LogCounts) -> bool:
    """Does the log go on by more than `margin`, or say later that the training ended well, and no launcher that it
    failed then (`last_end`)? An uncaught traceback counts unless losses follow: what a program prints may come late.
    """
    progress = counts.progress[event.log_index] - event.progress
    if counts.is_completed or progress > margin:
        return True
    num_ends, num_retries = counts.end_counts[event.log_index]
    if event.cause == _GPU_MEMORY_CAUSE and num_retries > event.num_retries:
        return True
    if last_end >= num_ends:
        return False
    if event.level == "echo" and not event.frames:
        return num_ends > 0
    is_uncaught = event.is_uncaught or any(frame.function == "<module>" for frame in event.frames[:1])
    return num_ends > event.num_ends and (not is_uncaught or progress > 1)


def _may_be_survived(first: LogEvent, events: Sequence[LogEvent], progress: Sequence[int]) -> bool:
    """May the job have gone on after the error? It shows progress, and nobody says that it failed; or the same writer
    has another error later.
    """
    if first.is_uncaught or first.level != "root":
        return False
    others = [e for e in events if e is not first and (e.host, e.rank) == (first.host, first.rank)]
    later = [e for e in others if e.level == "root" and e.frames and e.line_number > first.line_number]
    if any(e.progress > first.progress or (first.frames and e.cause not in ("", first.cause)) for e in later):
        return True
    has_gone_on = progress[first.log_index] - first.progress >= _MAX_PROGRESS_OF_CERTAIN
    return has_gone_on and not any(e.level in ("end", "echo") for e in events)


def _follow_from_stop(echoes: Sequence[LogEvent], candidates: Sequence[LogEvent], events: Sequence[LogEvent]) -> bool:
    """Did ranks lose connections only after somebody had stopped the job: with Ctrl-C, or through its launcher? A
    launcher that names a return code had seen a rank fail.
    """
    stops = [e for e in candidates if e.level == "end" and e.cause == STOP_CAUSE]
    if not stops or any(e.level == "end" and e.cause == _FAILED_CAUSE for e in candidates):
        return False
    attempts = {e.attempt for e in stops}
    kills = [e for e in events if e.level == "hint" and e.cause == STOP_CAUSE and e.attempt in attempts]
    return all(e.cause == _LOST_PEER_CAUSE and any(_is_before(s, e) for s in (*stops, *kills)) for e in echoes)


def _is_before(event: LogEvent, other: LogEvent) -> bool:
    """By line in one log; by time in two, where both lines have one."""
    if event.log_index == other.log_index:
        return event.line_number < other.line_number
    if not (event.has_own_time and other.has_own_time and event.time is not None and other.time is not None):
        return False
    return event.time < other.time


def _find_broken_gpu(first: LogEvent, events: Sequence[LogEvent]) -> LogEvent | None:
    """A report of broken hardware on the host where a call to a GPU failed, or on one that is not named."""
    broken = (e for e in events if first.cause in causes_with("gpu-symptom") and e.cause in causes_with("hardware"))
    return next((e for e in broken if e.host in ("", first.host) or not first.host), None)
