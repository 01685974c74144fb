# SPDX-License-Identifier: Apache-2.0
"""The explanation of a cause: title, change, rank, relevant lines and notes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.diagnosis.causes import causes_by_id
from harness.diagnosis.diagnosis_types import Confidence, Diagnosis, Frame, LogEvent
from harness.diagnosis.first_cause import CauseSelection
from harness.diagnosis.line_prefix import parse_line
from harness.diagnosis.log_reader import LogReader
from harness.diagnosis.log_scanner import LogScanner
from harness.diagnosis.missing_ranks import find_missing_ranks
from harness.diagnosis.verdict_priority import VERDICT_NOTE

_LIBRARY_PATH = re.compile(r"site-packages|dist-packages|/lib/python3|<frozen|<string>")
_HARNESS_PATH = re.compile(r"/harness/(?:runtime|workers|patches)/")
_LOST_PEER_CAUSES = ("LG070", "LG073", "LG074")
_MEMORY_CAUSES = ("LG002", "LG003")
_ALLOCATION_CAUSES = ("LG001", "LG004")
_LOGITS = re.compile(r"ForCausalLMLoss|cross_entropy|\blogits\.float\(\)|\blm_head\(")
_LOGITS_NOTE = (
    "it was computing the logits of a whole micro-batch or their loss: `train.loss_chunk_size` of a run spec computes "
    "both in chunks of tokens"
)
_LOADING = "Loading checkpoint shards"
_LOADING_NOTE = (
    "it was loading a model: each rank reads all of it into host memory, unless ZeRO stage 3 is set up before "
    "`from_pretrained`"
)


def explain_selection(
    selection: CauseSelection,
    scanner: LogScanner,
    readers: list[LogReader],
    *,
    is_completed: bool,
) -> Diagnosis:
    """The diagnosis of the selected cause; without one, of a job that ended well or shows no failure."""
    notes = collect_notes(selection, scanner)
    first = selection.first
    if first is not None and not first.line_number:
        notes = (VERDICT_NOTE, *notes)
    if first is None:
        op_load = _diagnose_op_load(scanner, readers)
        if op_load is not None and not is_completed:
            return op_load
        if is_completed:
            return Diagnosis("completed", "certain", title="the job ended well", notes=notes)
        title = "the log shows no failure"
        return Diagnosis("no failure seen", title=title, lines=_last_lines(readers, 10), notes=notes)
    missing_ranks, evidence = (
        find_missing_ranks(selection.others, scanner.ranks, scanner.world_size) if first.cause == "LG070" else ([], "")
    )
    rank, host = _find_failed_rank(first, scanner)
    if missing_ranks:
        rank, host = missing_ranks[0], scanner.hosts.get(missing_ranks[0], "")
        notes = (
            f"missing: rank{'s' if len(missing_ranks) > 1 else ''} {_format_numbers(missing_ranks)}; {evidence}",
            *notes,
        )
    if not host and rank is not None:
        host = scanner.hosts.get(rank, "")
    if first.cause in _MEMORY_CAUSES and any(_LOADING in text for _, text in _last_lines(readers, 12)):
        notes = (_LOADING_NOTE, *notes)
    if first.cause in _ALLOCATION_CAUSES and _is_in_logits(first.frames):
        notes = (_LOGITS_NOTE, *notes)
    title, change = describe_cause(first.cause)
    return Diagnosis(
        "failed",
        _confidence_of(selection, first),
        first.cause,
        title or _unknown_title(first),
        _shorten(first.text),
        change,
        rank,
        host,
        first.line_number,
        _find_location(first),
        _select_lines(selection, first, readers),
        notes,
        details=first.details,
    )


def _is_in_logits(frames: Sequence[Frame]) -> bool:
    """Did a traceback end in the logits of a model or their loss, computed at once?"""
    last = [f"{frame.function} {frame.code}" for frame in frames[-4:] if "chunked_" not in frame.file]
    return len(last) == len(frames[-4:]) and any(_LOGITS.search(text) for text in last)


def describe_cause(cause: str) -> tuple[str, str]:
    """(what happened, what to change) of a gate, a finding or a known cause; empty texts for an unknown one."""
    if not cause:
        return "", "read the lines below; the first of them is the oldest"
    if cause in causes_by_id():
        return causes_by_id()[cause].title, causes_by_id()[cause].change
    from harness.finding_pages import load_pages
    from harness.gates.registry import all_gates

    change = f"`harness explain {cause}` shows the settings to use instead; `harness validate-config` finds it too"
    gate = next((gate for gate in all_gates() if gate.id == cause), None)
    if gate is not None:
        return gate.page.title[0].lower() + gate.page.title[1:], change
    page = load_pages().get(cause)
    if page is None:
        return cause, f"`harness explain {cause}` explains it"
    sentence = " ".join(page.text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    return sentence[0].lower() + sentence[1:], f"`harness explain {cause}` explains it"


def _confidence_of(selection: CauseSelection, first: LogEvent) -> Confidence:
    if not first.cause:
        return "unknown"
    return "certain" if first.sure and not selection.is_contested and first.level == "root" else "likely"


def _find_failed_rank(first: LogEvent, scanner: LogScanner) -> tuple[int | None, str]:
    """The rank and host of the first failure, from torchrun's summary where the line has none."""
    rank, host = (scanner.torchrun_root_cause.get(name, "") for name in ("rank", "host"))
    if not scanner.torchrun_root_cause or (first.rank is not None and first.level == "root"):
        return first.rank, first.host or (host if rank == str(first.rank) else "")
    return (int(rank) if rank.isdigit() else None), first.host or host


def _unknown_title(first: LogEvent) -> str:
    if not first.line_number:  # the text of the verdict
        return _shorten(first.text, 160)
    return f"an exception that is not in the catalogue: {_shorten(first.text, 160)}"


def _find_location(first: LogEvent) -> str:
    script_frames = [f for f in first.frames if not _LIBRARY_PATH.search(f.file)]
    own_frames = [f for f in script_frames if not _HARNESS_PATH.search(f.file)]
    frame = next(iter([*own_frames[-1:], *script_frames[-1:], *first.frames[-1:]]), None)
    return f"{frame.file}:{frame.line} in {frame.function}" if frame else ""


def _select_lines(selection: CauseSelection, first: LogEvent, readers: list[LogReader]) -> tuple[tuple[int, str], ...]:
    frames = [(0, f'File "{f.file}", line {f.line}, in {f.function}') for f in first.frames[-3:]]
    rest = sorted((e for e in selection.others if e is not first), key=lambda e: e.line_number)
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
            notes.append(f"{len(same_ranks)} ranks have the same error: {_format_numbers(same_ranks)}")
        echoes = {e.rank for e in selection.others if e.level == "echo" and e.cause != first.cause}
        if echoes and first.level != "echo":
            count = len(echoes - {None})
            ranks = f"of {count} other rank{'s' if count > 1 else ''} " if count else ""
            notes.append(f"the lost connections and timeouts {ranks}followed from it")
        if selection.is_contested:
            notes.append("another error in the log may have come first; see the lines")
    survived_errors = [e for e in selection.survived_errors if e.level != "hint"]
    if survived_errors:
        notes.append(
            f"the job survived {len(survived_errors)} earlier error line{'s' if len(survived_errors) > 1 else ''}"
        )
    hints = {e.cause for e in scanner.events if e.level == "hint"}
    notes += [
        f"{causes_by_id()[cause].title}: {causes_by_id()[cause].change}"
        for cause in sorted(hints)
        if scanner.world_size > 8
    ]
    return tuple(notes)


def _diagnose_op_load(scanner: LogScanner, readers: list[LogReader]) -> Diagnosis | None:
    """The diagnosis of a log that ends while torch looks for a compiled op; None for any other log."""
    last_lines = _last_lines(readers, 12)
    if not scanner.op_loads or not any("PyTorch extensions root" in text for _, text in last_lines):
        return None
    title, change = describe_cause("LG026")
    message = next(iter(scanner.op_loads.values()))[1]
    return Diagnosis("failed", "likely", "LG026", title, _shorten(message), change, lines=last_lines[-10:])


def _last_lines(readers: list[LogReader], count: int) -> tuple[tuple[int, str], ...]:
    """The last lines that are not empty, with their numbers."""
    lines = []
    for reader in readers:
        rows = reader.tail.split(b"\n")
        number = reader.lines - len(rows) + 2
        lines = [
            (number + i, _shorten(parse_line(row).text))
            for i, row in enumerate(rows[-4 * count :], max(0, len(rows) - 4 * count))
        ]
    return tuple((number, text) for number, text in lines if text)[-count:]


def _shorten(text: str, max_length: int = 400) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= max_length else plain[: max_length - 3] + "..."


def _format_numbers(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:8]))
    return text if len(numbers) <= 8 else f"{text} and {len(numbers) - 8} more"
