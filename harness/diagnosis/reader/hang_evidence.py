# SPDX-License-Identifier: Apache-2.0
"""Dumps and stacks of a job that hangs -> events that name the rank which is not in the collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.diagnosis.diagnosis_types import LogEvent
from harness.diagnosis.evidence.flight_recorder import FlightDump, StuckCollective, find_stuck_collectives, format_ranks
from harness.diagnosis.evidence.stack_traces import ProcessStack, StackPlace, find_outsiders
from harness.diagnosis.reader.log_scanner import LogScanner

_MISSING_CAUSE, _OUTSIDE_CAUSE, _DISAGREEMENT_CAUSE = "LG240", "LG241", "LG071"
_LOCK_CAUSE, _WAIT_CAUSE = "LG026", "LG070"
_MAX_NAMED = 4


def explain_hang(scanner: LogScanner, dumps: Sequence[FlightDump], dump_places: Sequence[StackPlace]) -> list[LogEvent]:
    """The events from dumps and stacks. Gives events of killed processes their rank."""
    scanner.events[:] = [_with_rank(event, scanner) for event in scanner.events]
    scanner.ranks.update(dump.rank for dump in dumps)
    ranks, events = [dump.rank for dump in dumps], list[LogEvent]()
    for stuck in find_stuck_collectives(dumps)[:1]:
        number = ranks.index(stuck.missing[0]) if stuck.missing and stuck.missing[0] in ranks else 0
        events.append(_event_of_dumps(stuck, scanner.attempt, dump_places[number]))
    stacks = scanner.stacks.finish()
    outsiders, insiders = find_outsiders(stacks)
    lockers = [stack for stack in stacks if stack.kind == "lock"]
    if lockers:
        events.append(_event_of_stacks(lockers, (), scanner, _LOCK_CAUSE))
    elif outsiders:
        events.append(_event_of_stacks(outsiders, insiders, scanner, _OUTSIDE_CAUSE))
    elif insiders and len(stacks) == 1:  # several that stand in one collective may be those of a healthy job
        events.append(_event_of_stacks(insiders, (), scanner, _WAIT_CAUSE))
    return events


def _with_rank(event: LogEvent, scanner: LogScanner) -> LogEvent:
    """The event with the rank of the process that it names, if the log says which rank that was."""
    pid = event.details.get("pid", "")
    if event.rank is not None or not pid.isdecimal():
        return event
    rank = scanner.rank_of_pid(event.host, int(pid))
    return event if rank is None else replace(event, rank=rank)


def _event_of_dumps(stuck: StuckCollective, attempt: int, place: StackPlace) -> LogEvent:
    call = f"{stuck.operation} #{stuck.number} of group `{stuck.group}` ({stuck.size or 'sizes differ'})"
    if stuck.disagreement:
        text = f"flight recorder: {format_ranks(stuck.waiting)} called {call}, and {stuck.disagreement}"
        event = LogEvent(place.line_number, text, _DISAGREEMENT_CAUSE, "root", sure=True, frames=stuck.frames)
        return replace(event, log_index=place.log_index, attempt=attempt)
    absent = stuck.missing or stuck.without_dump
    why = "never joined" if stuck.missing else "wrote no dump, the others wait for them in"
    text = f"flight recorder: {format_ranks(absent)} {why} {call}; {format_ranks(stuck.waiting)} did"
    if stuck.last:
        text += f"; the last collective of rank {absent[0]} was {stuck.last}"
    rank = absent[0] if len(absent) <= _MAX_NAMED else None
    details = {"missing": ",".join(map(str, absent)), "op": stuck.operation, "seq": str(stuck.number)}
    event = LogEvent(place.line_number, text, _MISSING_CAUSE, "echo", sure=False, rank=rank, details=details)
    return replace(event, log_index=place.log_index, attempt=attempt)


def _event_of_stacks(
    outsiders: Sequence[ProcessStack], insiders: Sequence[ProcessStack], scanner: LogScanner, cause: str
) -> LogEvent:
    first = outsiders[0]
    places = "; ".join(f"{_name(stack, scanner)} in {stack.describe()}" for stack in outsiders[:_MAX_NAMED])
    count = len(insiders)
    text = f"stacks: {places}"
    text += f"; {count} other process{'es' if count > 1 else ''} in {insiders[0].describe()}" if count else ""
    return LogEvent(
        first.place.line_number,
        text,
        cause,
        "echo",
        sure=False,
        host=first.host,
        rank=_rank(first, scanner) if len(outsiders) <= _MAX_NAMED else None,
        frames=tuple(reversed(first.frames)),
        attempt=scanner.attempt,
        log_index=first.place.log_index,
        progress=first.place.progress,
    )


def _rank(stack: ProcessStack, scanner: LogScanner) -> int | None:
    if stack.rank is not None:
        return stack.rank
    if stack.pid is not None and (rank := scanner.rank_of_pid(stack.host, stack.pid)) is not None:
        return rank
    return scanner.global_rank_of(stack.host, stack.local_rank) if stack.local_rank is not None else None


def _name(stack: ProcessStack, scanner: LogScanner) -> str:
    rank = _rank(stack, scanner)
    pid = f"process {stack.pid}" if stack.pid is not None else "a process"
    return f"rank {rank}" + (f" (pid {stack.pid})" if stack.pid is not None else "") if rank is not None else pid
