"""The way from a stream to the answer: read, scan, choose, and say how sure it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, BinaryIO

from harness.diagnosis.causes import causes_by_id
from harness.diagnosis.diagnosis_types import Confidence, Diagnosis, LogEvent
from harness.diagnosis.first_cause import CauseSelection, select_first_cause
from harness.diagnosis.line_prefix import parse_line
from harness.diagnosis.log_reader import LogReader
from harness.diagnosis.log_scanner import LogScanner
from harness.diagnosis.missing_ranks import find_missing_ranks
from harness.diagnosis.plan_comparison import compare_with_plan
from harness.diagnosis.verdict_priority import VERDICT_NOTE, diagnose_clean_end, select_by_verdict
from harness.verdicts import Verdict

_LIBRARY_PATH = re.compile(r"site-packages|dist-packages|/lib/python3|<frozen|<string>")
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"(\xb5/\xfd": "zstd",
    b"PK\x03\x04": "a zip archive",
}
_RANK_LOG_NAME = re.compile(r"/(\d{1,5})/std(?:out|err)\.log$|rank[_-]?(\d{1,5})\b")
_LOST_PEER_CAUSES = ("LG070", "LG073", "LG074")


def diagnose(
    streams: Iterable[BinaryIO],
    *,
    plan: Mapping[str, Any] | None = None,
    hosts: Mapping[int, str] | None = None,
    verdict: Verdict | None = None,
) -> Diagnosis:
    """The first cause told by one or several logs of one job, read one after the other.

    `plan` is the `plan.json` of a run, `hosts` where its ranks were, `verdict` what its supervisor saw, where those are
    known; the verdict comes before the logs. Memory stays bounded whatever the size. Raises OSError when a stream
    cannot be read.
    """
    scanner, readers = LogScanner(hosts or {}), list[LogReader]()
    for stream in streams:
        reader = LogReader(stream)
        scanner.start_log(sum(r.lines for r in readers), _rank_of(getattr(stream, "name", "")))
        for line in reader:
            scanner.scan_line(line)
        scanner.finish_log()
        readers.append(reader)
    size = sum(reader.size for reader in readers)
    if not size and verdict is None:
        return Diagnosis("empty", title="the log is empty")
    lines = sum(reader.lines for reader in readers)
    if any(reader.nulls * 50 > reader.size or _is_compressed(reader) for reader in readers):
        return replace(_diagnose_binary_file(readers), num_lines=lines, num_bytes=size)
    progress = [reader.progress for reader in readers]
    ended_well = scanner.num_clean_exits > 0 and not any(e.level == "end" for e in scanner.events)
    world = scanner.world_size or len(scanner.ranks)
    talkers = max(len(reader.writers) for reader in readers)
    choice = select_first_cause(
        scanner.events,
        progress,
        world,
        talkers,
        clock_went_back=scanner.clock_went_back or len(readers) > 1,
        is_completed=ended_well,
    )
    if verdict is not None and verdict.state == "failed":
        choice = select_by_verdict(verdict, choice)
    other_end = diagnose_clean_end(verdict, _collect_notes(choice, scanner)) if verdict is not None else None
    answer = other_end or _build_diagnosis(choice, scanner, readers, is_completed=ended_well)
    if answer.cause == "LG001" and plan:
        answer = replace(answer, notes=(*compare_with_plan(answer.details, plan), *answer.notes))
    return replace(answer, ranks=tuple(sorted(scanner.ranks)[:4096]), num_lines=lines, num_bytes=size)


def _rank_of(name: object) -> int | None:
    """The rank whose log a file is, by torchrun's and the usual names."""
    found = _RANK_LOG_NAME.search(name) if isinstance(name, str) else None
    return int(found[1] or found[2]) if found else None


def _is_compressed(reader: LogReader) -> bool:
    return any(reader.head.startswith(magic) for magic in _MAGIC)


def _diagnose_binary_file(readers: list[LogReader]) -> Diagnosis:
    kind = next((kind for r in readers for magic, kind in _MAGIC.items() if r.head.startswith(magic)), "")
    title = f"this is no text but {kind}" if kind else "this is no text"
    change = (
        "give its unpacked text: `zcat FILE | harness explain --log -`" if kind else "give the text that a job printed"
    )
    return Diagnosis("not text", title=title, change=change)


def _build_diagnosis(
    choice: CauseSelection,
    scanner: LogScanner,
    readers: list[LogReader],
    *,
    is_completed: bool,
) -> Diagnosis:
    notes = _collect_notes(choice, scanner)
    first = choice.first
    if first is not None and not first.line_number:
        notes = (VERDICT_NOTE, *notes)
    if first is None:
        waiting = _diagnose_op_load(scanner, readers)
        if waiting is not None and not is_completed:
            return waiting
        if is_completed:
            return Diagnosis("completed", "certain", title="the job ended well", notes=notes)
        title = "nothing in the log tells of a failure"
        return Diagnosis("no failure seen", title=title, lines=_last_lines(readers, 10), notes=notes)
    lost, how = (
        find_missing_ranks(choice.others, scanner.ranks, scanner.world_size) if first.cause == "LG070" else ([], "")
    )
    rank, host = _find_failed_rank(first, scanner)
    if lost:
        rank, host = lost[0], scanner.hosts.get(lost[0], "")
        notes = (f"missing: rank{'s' if len(lost) > 1 else ''} {_format_numbers(lost)}; {how}", *notes)
    if not host and rank is not None:
        host = scanner.hosts.get(rank, "")
    title, change = describe_cause(first.cause)
    return Diagnosis(
        "failed",
        _confidence_of(choice, first),
        first.cause,
        title or _unknown_title(first),
        _shorten(first.text),
        change,
        rank,
        host,
        first.line_number,
        _find_location(first),
        _select_lines(choice, first, readers),
        notes,
        details=first.details,
    )


def describe_cause(cause: str) -> tuple[str, str]:
    """(what happened, what to change) of a gate, a finding or a known cause; empty texts for an unknown one."""
    if not cause:
        return "", "read the lines below; the first of them is the oldest"
    if cause in causes_by_id():
        return causes_by_id()[cause].title, causes_by_id()[cause].change
    from harness.finding_pages import load_pages
    from harness.gates.registry import all_gates

    change = f"`harness explain {cause}` says what to write instead; `harness validate-config` finds it before the job"
    gate = next((gate for gate in all_gates() if gate.id == cause), None)
    if gate is not None:
        return gate.title[0].lower() + gate.title[1:], change
    page = load_pages().get(cause)
    if page is None:
        return cause, f"`harness explain {cause}` says what it means"
    sentence = " ".join(page.text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    return sentence[0].lower() + sentence[1:], f"`harness explain {cause}` says what it means"


def _confidence_of(choice: CauseSelection, first: LogEvent) -> Confidence:
    if not first.cause:
        return "unknown"
    return "certain" if first.sure and not choice.is_contested and first.level == "root" else "likely"


def _find_failed_rank(first: LogEvent, scanner: LogScanner) -> tuple[int | None, str]:
    """The rank and host of the first failure; torchrun's own word where the line has none."""
    if not scanner.torchrun_root_cause or (first.rank is not None and first.level == "root"):
        return first.rank, first.host
    rank = scanner.torchrun_root_cause.get("rank", "")
    return (int(rank) if rank.isdigit() else None), first.host or scanner.torchrun_root_cause.get("host", "")


def _unknown_title(first: LogEvent) -> str:
    if not first.line_number:  # the verdict's words
        return _shorten(first.text, 160)
    return f"an exception that is not in the catalogue: {_shorten(first.text, 160)}"


def _find_location(first: LogEvent) -> str:
    own = [f for f in first.frames if not _LIBRARY_PATH.search(f.file)]
    frame = own[-1] if own else first.frames[-1] if first.frames else None
    return f"{frame.file}:{frame.line} in {frame.function}" if frame else ""


def _select_lines(choice: CauseSelection, first: LogEvent, readers: list[LogReader]) -> tuple[tuple[int, str], ...]:
    frames = [(0, f'File "{f.file}", line {f.line}, in {f.function}') for f in first.frames[-3:]]
    rest = sorted((e for e in choice.others if e is not first), key=lambda e: e.line_number)
    after = [(e.line_number, _shorten(e.text, 200)) for e in rest]
    found = [*frames, *([(first.line_number, _shorten(first.text))] if first.line_number else [])]
    if not first.cause or first.level == "end":
        found += after[: 10 - len(found)]
        if len(found) < 10 and not frames:
            found += [
                line for line in _last_lines(readers, 10 - len(found)) if line[1] not in {text for _, text in found}
            ]
    else:
        found += after[: 6 - len(found)]
    return tuple(found[:10])


def _collect_notes(choice: CauseSelection, scanner: LogScanner) -> tuple[str, ...]:
    notes = []
    first = choice.first
    if first is not None:
        same = sorted({e.rank for e in choice.others if e.cause == first.cause and e.rank is not None})
        if first.cause and first.cause not in _LOST_PEER_CAUSES and len(same) > 1:
            notes.append(f"{len(same)} ranks say the same: {_format_numbers(same)}")
        echoes = {e.rank for e in choice.others if e.level == "echo" and e.cause != first.cause}
        if echoes and first.level != "echo":
            count = len(echoes - {None})
            ranks = f"of {count} other rank{'s' if count > 1 else ''} " if count else ""
            notes.append(f"the lost connections and time-outs {ranks}came of it")
        if choice.is_contested:
            notes.append("another error in the log may have come first; see the lines")
    outlived = [e for e in choice.survived_errors if e.level != "hint"]
    if outlived:
        notes.append(f"the job went on after {len(outlived)} earlier error line{'s' if len(outlived) > 1 else ''}")
    hints = {e.cause for e in scanner.events if e.level == "hint"}
    notes += [
        f"{causes_by_id()[cause].title}: {causes_by_id()[cause].change}"
        for cause in sorted(hints)
        if scanner.world_size > 8 or ()
    ]
    return tuple(notes)


def _diagnose_op_load(scanner: LogScanner, readers: list[LogReader]) -> Diagnosis | None:
    """A log whose last words are that torch looks for a compiled op."""
    last = _last_lines(readers, 12)
    if not scanner.op_loads or not any("PyTorch extensions root" in text for _, text in last):
        return None
    title, change = describe_cause("LG026")
    message = next(iter(scanner.op_loads.values()))[1]
    return Diagnosis("failed", "likely", "LG026", title, _shorten(message), change, lines=last[-10:])


def _last_lines(readers: list[LogReader], count: int) -> tuple[tuple[int, str], ...]:
    """The last lines that hold something."""
    found = []
    for reader in readers:
        rows = reader.tail.split(b"\n")
        number = reader.lines - len(rows) + 2
        found = [
            (number + i, _shorten(parse_line(row).text))
            for i, row in enumerate(rows[-4 * count :], max(0, len(rows) - 4 * count))
        ]
    return tuple((number, text) for number, text in found if text)[-count:]


def _shorten(text: str, most: int = 400) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def _format_numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"
