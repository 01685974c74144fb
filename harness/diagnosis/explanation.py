# SPDX-License-Identifier: Apache-2.0
"""The explanation of a cause: title, change, rank, relevant lines and notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from harness.diagnosis.catalogue import causes_by_id, causes_with
from harness.diagnosis.diagnosis_types import (
    NO_PHASE,
    Confidence,
    Diagnosis,
    FailedAllocation,
    FailurePhase,
    LogEvent,
    LogFacts,
)
from harness.diagnosis.evidence.allocation import (
    compare_numbers,
    find_disk_allocation,
    find_gpu_allocation,
    find_host_allocation,
    is_refused_with_room,
)
from harness.diagnosis.evidence.failure_phase import find_phase
from harness.diagnosis.evidence.flight_recorder import format_ranks
from harness.diagnosis.evidence.job_notes import describe_by_log, describe_job
from harness.diagnosis.evidence.log_end import (
    END_TEXTS,
    describe_missing_hosts,
    describe_open_end,
    diagnose_silent_end,
    note_memory,
)
from harness.diagnosis.evidence.missing_ranks import describe_wait, describe_wait_of_ranks, find_missing_ranks
from harness.diagnosis.evidence.python_errors import name_cause
from harness.diagnosis.evidence.python_release import name_python
from harness.diagnosis.evidence.release_pair import name_last_package, name_older
from harness.diagnosis.evidence.unknown_cause import describe_area, describe_next_step, is_generic_evidence
from harness.diagnosis.first_cause import CauseSelection
from harness.diagnosis.reader.line_prefix import parse_line
from harness.diagnosis.reader.log_reader import LogReader
from harness.diagnosis.reader.log_scanner import LogScanner
from harness.diagnosis.rules.exception_names import find_statement, match_bare
from harness.diagnosis.rules.stated_remedy import correct_for_variables, find_stated_remedy, strip_name, tell_stated
from harness.diagnosis.verdict_priority import VERDICT_NOTE

_LIBRARY_PATH = re.compile(r"site-packages|dist-packages|/lib/python3|<frozen|<string>")
_HARNESS_PATH = re.compile(r"/harness/(?:runtime|workers|patches)/")
_LOST_PEER_CAUSES = ("LG070", "LG073", "LG074")
_GPU_CAUSE, _DISK_CAUSE, _TIMEOUT_CAUSE, _SETUP_CAUSE = "LG001", "LG050", "LG070", "LG192"
_REFUSED_CAUSE = "LG291"
_MAX_LAST_LINE = 1 << 12
_LONG_LINE = re.compile(rb"(?m)^([^\n]{6144})[^\n]+([^\n]{2048})$")
_SAYS_NOTHING = re.compile(r"[=*#~_-]+|error_file ?: <N/A>")
"""Separator lines, and an empty field of torchrun's table."""
_MAX_QUOTE, _MAX_LAST_LINES = 3, 6
"""Lines of a log that is only a quote; last lines that may report an error without an exception."""
_MAX_EARLIER = 5
"""Failed attempts before the last one that get a note each."""
_HOST_CAUSES = ("LG002", "LG003", "LG004")


def explain_selection(
    selection: CauseSelection, scanner: LogScanner, readers: list[LogReader], *, is_completed: bool
) -> Diagnosis:
    """The diagnosis of the selected cause; without one, of a job that ended well or shows no failure."""
    if selection.first is None:
        bare = None if is_completed else _diagnose_bare(selection, scanner, readers)
        return bare or _explain_no_failure(selection, scanner, readers, is_completed=is_completed)
    return _explain_failure(selection, selection.first, scanner, readers)


def _explain_failure(
    selection: CauseSelection, first: LogEvent, scanner: LogScanner, readers: list[LogReader]
) -> Diagnosis:
    """The diagnosis of the first failure."""
    notes = collect_notes(selection, scanner)
    if not first.line_number:
        notes = (VERDICT_NOTE, *notes)
    first = replace(first, cause="") if is_generic_evidence(first) else first
    text = _all_text(readers)
    first = _suspect_limit_or_gpu(first, selection.earlier)
    is_alone = not scanner.ranks and scanner.world_size <= 1
    named = name_cause(describe_by_log(first, text, is_alone=is_alone), selection.others, text)
    first = named if first.cause else describe_by_log(named, text, is_alone=is_alone)
    first = name_python(name_older(first, merge_facts(readers).versions), text)
    if not first.cause and (remedy := find_stated_remedy(first.text, least="told")):
        title = f"the program says itself what to change: {_shorten(strip_name(first.text), 160)}"
        first = replace(first, cause=_REFUSED_CAUSE, title=title, change=remedy, sure=False)
    if first.cause == _TIMEOUT_CAUSE:  # whoever reports it only waited
        missing_ranks, evidence = list[int](), ""
        if not scanner.is_incomplete:
            world_size = scanner.world_size or merge_facts(readers).world_size
            missing_ranks, evidence = find_missing_ranks(selection.others, scanner.ranks, world_size)
        rank, host = missing_ranks[0] if missing_ranks else None, ""
        notes = (*describe_wait_of_ranks(selection.others, missing_ranks, evidence), *notes)
    else:
        rank, host = _find_failed_rank(first, scanner)
    if not host and rank is not None:
        host = scanner.hosts.get(rank, "")
    is_engine_over = first.cause in causes_with("silent") and first.phase.name in ("engine", "op")  # a loss is printed
    phase = find_phase(first.frames, NO_PHASE if is_engine_over else first.phase)
    first, memory_notes = note_memory(first, b"".join(r.tail for r in readers), has_phase=phase is not None)
    allocation = _find_allocation(first, phase, readers)
    job_notes = describe_job(first, text, phase, is_alone=is_alone)
    notes = (*_notes_of_phase(first, phase), *job_notes, *memory_notes, *notes)
    title, change = describe_cause(first.cause, needs_change=not first.change)
    if allocation is not None and not first.change:
        change = allocation.change
    elif not first.cause:
        versions = merge_facts(readers).versions
        change = describe_next_step(first.text, first.frames, versions) if first.line_number else change
    change = correct_for_variables(first.change or change, text)
    title = first.title or title or _unknown_title(first)
    first, title, change = tell_stated(first, title, change, is_gate=first.cause not in causes_by_id())
    return Diagnosis(
        "failed",
        _confidence_of(selection, first),
        first.cause,
        name_last_package(title, first.frames),
        _shorten(first.text),
        name_last_package(change, first.frames),
        rank,
        host,
        first.line_number,
        _find_location(first),
        _select_lines(selection, first, readers),
        notes,
        details=first.details,
        phase=phase,
        allocation=allocation,
        releases=describe_releases(first.cause, first.pattern),
        is_named=selection.is_named_by(first),
    )


def _suspect_limit_or_gpu(first: LogEvent, earlier: Sequence[LogEvent]) -> LogEvent:
    """The event, with another cause where a GPU had room for what was refused, or where one rank of one host alone made
    an access to invalid memory in each attempt.
    """
    name = "room" if first.cause == _GPU_CAUSE and is_refused_with_room(first.text) else ""
    places = {(e.cause, e.host, e.rank) for e in (first, *earlier)}
    if first.cause == "LG017" and earlier and len(places) == 1 and first.rank is not None:
        name = "one rank"
    if not name:
        return first
    cause, title, change = (END_TEXTS[name][key] for key in ("cause", "title", "change"))
    return replace(first, sure=False, cause=cause, title=title, change=change)


def _explain_no_failure(
    selection: CauseSelection, scanner: LogScanner, readers: list[LogReader], *, is_completed: bool
) -> Diagnosis:
    """The diagnosis of a log without an event that may be the first failure."""
    notes = (*describe_job(None, _all_text(readers)), *collect_notes(selection, scanner))
    if is_completed:
        return Diagnosis("completed", "certain", title="the job ended well", notes=notes)
    found = describe_by_log(LogEvent(0, "", "none", "root", sure=False), _all_text(readers))
    if found.title:
        lines = _last_lines(readers, 10)
        return Diagnosis("failed", "likely", found.cause, found.title, change=found.change, lines=lines, notes=notes)
    last = _last_text(readers)
    mark = last.phases.last if last is not None else NO_PHASE
    silent_end = diagnose_silent_end(scanner.events, _last_lines(readers, 40))
    if silent_end is not None:
        return replace(silent_end, phase=find_phase((), mark))
    lines = _last_lines(readers, _MAX_LAST_LINES)
    is_quote = sum(reader.lines for reader in readers) <= _MAX_QUOTE
    for number, text in lines:
        if statement := find_statement(text, is_quote=is_quote):
            event = LogEvent(number, f"Exception: {statement}", "", "root", False, details={"lost": "Exception"})
            return replace(_explain_failure(selection, event, scanner, readers), message=text, lines=lines)
    notes = (describe_open_end(last.tail if last is not None else b""), *notes)
    title = "the log shows no failure"
    phase = find_phase((), mark, is_over=True)
    return Diagnosis("no failure seen", title=title, lines=_last_lines(readers, 10), notes=notes, phase=phase)


def _diagnose_bare(selection: CauseSelection, scanner: LogScanner, readers: list[LogReader]) -> Diagnosis | None:
    """The diagnosis of an exception that has lost its name: in a quote of a few lines, or the last one of a log before
    its training.
    """
    is_quote = sum(reader.lines for reader in readers) <= _MAX_QUOTE
    has_trained = any(reader.phases.last.has_trained for reader in readers)
    for number, text in _last_lines(readers, _MAX_QUOTE if is_quote else 1) if is_quote or not has_trained else ():
        for name, match in match_bare(text):
            details = {**match.details, "lost": name}
            event = LogEvent(number, f"{name}: {text}", match.cause, "root", False, details=details)
            event = replace(event, title=match.title, change=match.change, pattern=match.pattern)
            found = _explain_failure(selection, event, scanner, readers)
            if found.cause:
                return replace(found, message=text, lines=((number, text),))
    return None


def _all_text(readers: Sequence[LogReader]) -> bytes:
    """The starts and the ends of all logs; a short one once. A line has 8 KiB: patterns may try each of its words."""
    text = b"".join(
        (reader.head + b"\n" if reader.size > len(reader.tail) else b"") + reader.tail for reader in readers
    )
    return _LONG_LINE.sub(rb"\1\2", text)


def _find_allocation(first: LogEvent, phase: FailurePhase | None, readers: list[LogReader]) -> FailedAllocation | None:
    """The block that was being allocated or written when memory or a disk ran out; None for other causes."""
    name, frames = phase.name if phase else "", first.frames
    num_parameters = merge_facts(readers).num_parameters
    if first.cause == _GPU_CAUSE:
        return find_gpu_allocation(frames, name)
    if first.cause in _HOST_CAUSES:
        return find_host_allocation(frames, name, first.text, num_parameters, is_seen=first.cause != "LG003")
    return find_disk_allocation(frames, name, first.text, num_parameters) if first.cause == _DISK_CAUSE else None


def _notes_of_phase(first: LogEvent, phase: FailurePhase | None) -> tuple[str, ...]:
    """The meaning of the numbers of an out-of-memory message, or the likely fate of a missing rank."""
    if first.cause == _GPU_CAUSE:
        return compare_numbers(first.text)
    wait = describe_wait(phase.name) if first.cause == _TIMEOUT_CAUSE and phase is not None else ""
    return (wait,) if wait else ()


def merge_facts(readers: list[LogReader]) -> LogFacts:
    """The facts of all logs of a job."""
    facts = LogFacts()
    for reader in readers:
        facts.merge(reader.facts)
    return facts


def describe_cause(cause: str, *, needs_change: bool = True) -> tuple[str, str]:
    """(what happened, what to change) of a gate, a finding or a known cause; empty texts for an unknown one."""
    if not cause:
        return "", "read the lines below; the first of them is the oldest"
    if cause in causes_by_id():
        return causes_by_id()[cause].title, causes_by_id()[cause].change
    from harness.diagnosis.gate_fix import describe_gate_fix
    from harness.finding_pages import load_pages
    from harness.gates.registry import all_gates

    gate = next((gate for gate in all_gates() if gate.id == cause), None)
    if gate is not None:
        change = describe_gate_fix(gate) if needs_change else ""
        return _begin_small(gate.page.title), change
    page = load_pages().get(cause)
    if page is None:
        return cause, f"`harness explain {cause}` explains it"
    sentence = " ".join(page.text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    return _begin_small(sentence), f"`harness explain {cause}` explains it"


def _begin_small(sentence: str) -> str:
    """As a part of a longer sentence; a name such as `ZeRO` keeps its letters."""
    is_word = sentence[1:2].islower() or sentence[1:2] == " "
    return sentence[0].lower() + sentence[1:] if is_word and not re.match(r"\w+[A-Z]", sentence) else sentence


def _confidence_of(selection: CauseSelection, first: LogEvent) -> Confidence:
    is_open = first.cause in causes_with("open-change") and not first.proves_change
    return "unknown" if not first.cause else "certain" if selection.is_named_by(first) and not is_open else "likely"


def _find_failed_rank(first: LogEvent, scanner: LogScanner) -> tuple[int | None, str]:
    """The rank and host of the first failure, from torchrun's summary where the line does not name them."""
    if first.cause == _SETUP_CAUSE:
        return None, ""  # whoever reports it only waited
    rank, host = (scanner.torchrun_root_cause.get(name, "") for name in ("rank", "host"))
    if not scanner.torchrun_root_cause or (first.rank is not None and first.level == "root"):
        return first.rank, first.host or (host if rank == str(first.rank) else "")
    return (int(rank) if rank.isdecimal() else None), first.host or host


def describe_releases(cause: str, pattern: str) -> str:
    """The releases of DeepSpeed that print this message, and the one after which the fault is gone; empty where it is
    in all that were searched.
    """
    from harness.diagnosis.catalogue import releases_of
    from harness.facts.deepspeed_version import VERIFIED_RANGE

    ends, parts = releases_of(pattern) if pattern else None, []
    if ends is not None and ends != VERIFIED_RANGE:
        parts.append(_describe_range(*ends, *VERIFIED_RANGE))
    if cause and cause not in causes_by_id():
        from harness.gates.registry import all_gates

        gate = next((gate for gate in all_gates() if gate.id == cause), None)
        if gate is not None and gate.until is not None:
            parts.append(f"the fault is gone after {'.'.join(map(str, gate.until))}")
    return "; ".join(parts)


def _describe_range(first: str, last: str, oldest: str, newest: str) -> str:
    """The releases that print a message. Releases before the oldest and after the newest were not read."""
    if first == oldest:
        return f"DeepSpeed up to {last} says this"
    if last == newest:
        return f"DeepSpeed from {first} on says this"
    return f"only DeepSpeed {first} says this" if first == last else f"DeepSpeed {first} to {last} say this"


def _unknown_title(first: LogEvent) -> str:
    if not first.line_number:  # the text of the verdict
        return _shorten(first.text, 160)
    area, _ = describe_area(first.frames)
    source = f", raised in {area}" if area else ""
    return f"an exception that is not in the catalogue{source}: {_shorten(first.text, 160)}"


def _find_location(first: LogEvent) -> str:
    script_frames = [f for f in first.frames if not _LIBRARY_PATH.search(f.file)]
    own_frames = [f for f in script_frames if not _HARNESS_PATH.search(f.file)]
    frame = next(iter([*own_frames[-1:], *script_frames[-1:], *first.frames[-1:]]), None)
    return f"{frame.file}:{frame.line} in {frame.function}" if frame else ""


def _select_lines(selection: CauseSelection, first: LogEvent, readers: list[LogReader]) -> tuple[tuple[int, str], ...]:
    frames = [(0, f'File "{f.file}", line {f.line}, in {f.function}') for f in first.frames[-3:]]
    rest = sorted((e for e in selection.others if e.line_number != first.line_number), key=lambda e: e.line_number)
    other_lines = [(e.line_number, _shorten(e.text, 200)) for e in rest]
    lines = [*frames, *([(first.line_number, _shorten(first.text))] if first.line_number else [])]
    if not first.cause or first.level == "end":
        lines += other_lines[: 10 - len(lines)]
        if len(lines) < 10 and not frames:
            lines += [
                line for line in _last_lines(readers, 10 - len(lines)) if line[1] not in {text for _, text in lines}
            ]
    else:
        lines += other_lines[: 6 - len(lines)]
    return tuple(lines[:10])


def collect_notes(selection: CauseSelection, scanner: LogScanner) -> tuple[str, ...]:
    """Notes on the other events of the log."""
    notes = []
    first = selection.first
    if first is not None:
        same_ranks = sorted({e.rank for e in selection.others if e.cause == first.cause and e.rank is not None})
        if first.cause and first.cause not in _LOST_PEER_CAUSES and len(same_ranks) > 1:
            notes.append(f"the same error is on {format_ranks(same_ranks)}")
        failed_rank, _ = _find_failed_rank(first, scanner)
        echoes = {e.rank for e in selection.others if e.level == "echo" and e.cause != first.cause}
        echoes -= {failed_rank} - {None}
        if echoes and first.level != "echo":
            count = len(echoes - {None})
            ranks = f"of {count} other rank{'s' if count > 1 else ''} " if count else ""
            notes.append(f"the lost connections and timeouts {ranks}followed from it")
        if selection.is_contested:
            notes.append("another error in the log may have come first; see the lines")
        last = max((e for e in selection.others if e.level == "root"), key=lambda e: e.line_number, default=first)
        is_said = (
            last.line_number > first.line_number and last.cause != first.cause and not last.text.startswith("the log")
        )
        if is_said and not first.sure:
            notes.append(f"the last error of the log says: `{_shorten(last.text, 160)}`")
    earlier = selection.earlier[-_MAX_EARLIER:]
    if len(selection.earlier) > len(earlier):
        notes.append(f"{len(selection.earlier)} attempts of the job had failed before; these are the last of them")
    for event in earlier:
        text = event.title or describe_cause(event.cause)[0] or "an exception"
        said = _shorten(event.text, 120)
        notes.append(f"attempt {event.attempt + 1} of the job had failed before: {text} (`{said}`)")
    survived_errors = [e for e in selection.survived_errors if e.level != "hint"]
    if survived_errors:
        notes.append(
            f"the job survived {len(survived_errors)} earlier error line{'s' if len(survived_errors) > 1 else ''}"
        )
    if missing_hosts := describe_missing_hosts(scanner.events):
        notes.append(f"{missing_hosts}: {causes_by_id()['LG075'].change}")
    return tuple(notes)


def _last_lines(readers: list[LogReader], count: int) -> tuple[tuple[int, str], ...]:
    """The last lines of the last log that are not empty, with their numbers."""
    reader = _last_text(readers)
    if reader is None:
        return ()
    rows = reader.tail.split(b"\n")
    number = reader.first_line + reader.lines - len(rows) + 2
    start = max(0, len(rows) - 4 * count)
    lines = [(number + i, _shorten(parse_line(row[:_MAX_LAST_LINE]).text)) for i, row in enumerate(rows[start:], start)]
    return tuple((number, text) for number, text in lines if text and not _SAYS_NOTHING.fullmatch(text))[-count:]


def _last_text(readers: list[LogReader]) -> LogReader | None:
    """The last log that is text, and not a dump; None without one."""
    return next((reader for reader in reversed(readers) if reader.tail), None)


def _shorten(text: str, max_length: int = 400) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= max_length else plain[: max_length - 3] + "..."
