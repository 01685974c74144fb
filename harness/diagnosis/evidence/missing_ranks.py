# SPDX-License-Identifier: Apache-2.0
"""A collective that timed out -> the ranks that it misses, and what they probably did, judging by the phase."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from harness.diagnosis.catalogue import CATALOGUE
from harness.diagnosis.diagnosis_types import LogEvent
from harness.diagnosis.evidence.flight_recorder import format_ranks
from harness.entry_file import read_entries

_GROUP = re.compile(r"\[PG (?:ID )?(\S+)")

_SIGNAL_OF_ANOTHER = re.compile(r"Received a dump signal due to a collective timeout from +rank \d")
"""A rank that dumps because another one timed out: it may be the missing one."""
_MAX_RANK = 1 << 17
_MIN_RANKS_FOR_GAP = 24
"""So many ranks must complain for each one that the log does not show, where the number of ranks is unknown."""


def find_missing_ranks(events: Sequence[LogEvent], ranks: Iterable[int], world_size: int) -> tuple[list[int], str]:
    """(the missing ranks, the evidence); ([], "") where they are unknown.

    A rank is behind when the last collective that it started has a lower number than the others'. In a log without
    numbers, the ranks without a timeout are missing, if most ranks have one.
    """
    all_timeouts = [e for e in events if e.cause == "LG070" and e.rank is not None]
    timeouts = _of_largest_group(all_timeouts)
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
    own_timeouts = [e for e in all_timeouts if len(enqueued_numbers) > 1 or not _SIGNAL_OF_ANOTHER.search(e.text)]
    ranks_with_timeout = {e.rank for e in own_timeouts if e.rank is not None}
    is_plausible = world_size > max(ranks_with_timeout, default=0)  # a log may name that of an older checkpoint
    all_ranks = set(range(world_size)) if is_plausible else set(ranks)
    silent_ranks = sorted(all_ranks - ranks_with_timeout)
    if ranks_with_timeout and silent_ranks and (len(silent_ranks) * 2 < len(all_ranks) or len(all_ranks) == 2):
        return silent_ranks, "they did not report the timeout, and the others did"
    last_rank = min(max(ranks_with_timeout, default=0), _MAX_RANK)
    unseen_ranks = sorted(set(range(last_rank + 1)) - ranks_with_timeout)
    if unseen_ranks and len(unseen_ranks) * _MIN_RANKS_FOR_GAP <= len(ranks_with_timeout):
        return unseen_ranks, "all other ranks up to the last one reported the timeout"
    return [], ""


def _of_largest_group(timeouts: Sequence[LogEvent]) -> Sequence[LogEvent]:
    """The events of the process group that most of them name: each group has numbers of its own."""
    groups = {id(e): match[1] for e in timeouts if (match := _GROUP.search(e.text))}
    if len(set(groups.values())) < 2:
        return timeouts
    largest = Counter(groups.values()).most_common(1)[0][0]
    return [e for e in timeouts if groups.get(id(e)) == largest]


def _find_ranks_behind(numbers: dict[int, int]) -> list[int]:
    """The ranks below the most frequent number; none where fewer than half have it."""
    if len(numbers) < 2:
        return []
    mode, count = Counter(numbers.values()).most_common(1)[0]
    ranks_behind = sorted(rank for rank, number in numbers.items() if number < mode)
    return ranks_behind if ranks_behind and (count * 2 > len(numbers) or len(numbers) == 2) else []


def describe_mismatch(events: Sequence[LogEvent]) -> str:
    """A title where ranks waited under one number, in one process group, in collectives of different operations or
    sizes; empty where none did. Ranks that send to each other wait in different operations as a rule.
    """
    seen: dict[tuple[str, str], dict[tuple[str, str], int]] = {}
    for event in events:
        if event.cause != "LG070" or event.rank is None or not {"op", "seq", "numel"} <= event.details.keys():
            continue
        group = match[1] if (match := _GROUP.search(event.text)) else ""
        operation = (event.details["op"], event.details["numel"])
        if operation[0] not in ("SEND", "RECV", "COALESCED"):
            seen.setdefault((group, event.details["seq"]), {}).setdefault(operation, event.rank)
    for (_, number), operations in seen.items():
        if len(operations) == 2:
            places = [f"rank {rank} in {op} of {size} elements" for (op, size), rank in operations.items()]
            return f"ranks waited in different collectives under the same number, #{number}: {' and '.join(places)}"
    return ""


def describe_wait_of_ranks(events: Sequence[LogEvent], missing_ranks: Sequence[int], evidence: str) -> tuple[str, ...]:
    """Notes on a collective that timed out: who is missing or that it is unknown, and in which operation who waited."""
    timeouts = [e for e in events if e.cause == "LG070" and not _SIGNAL_OF_ANOTHER.search(e.text)]
    waiting = sorted({e.rank for e in timeouts if e.rank is not None}.difference(missing_ranks))
    notes = []
    if missing_ranks:
        notes.append(f"missing: {format_ranks(missing_ranks)}; {evidence}")
    else:
        who = f"{format_ranks(waiting)} only waited" if waiting else "the rank that reports it only waited"
        notes.append(f"this is a symptom: {who}, and the log does not show which rank is missing or why")
    operations = [e for e in timeouts if "op" in e.details]
    if operations:
        first = operations[0]
        size = f", {first.details['numel']} elements" if "numel" in first.details else ""
        number = f" #{first.details['seq']}" if "seq" in first.details else ""
        notes.append(f"they waited in {first.details['op']}{number}{size}")
    return tuple(notes)


_WAITS = read_entries(CATALOGUE / "phases" / "waits.txt")


def describe_wait(phase: str) -> str:
    """The probable doing of the missing rank of a timed-out collective; empty where the phase is unknown."""
    return f"likely, by the phase: {_WAITS[phase]['did']}" if phase in _WAITS else ""
