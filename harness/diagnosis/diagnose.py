"""The way from a stream to the answer: read, scan, choose, and say how sure it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, BinaryIO

from harness.diagnosis.against_plan import against_plan
from harness.diagnosis.by_verdict import SEEN, choose_by, of_another_end
from harness.diagnosis.causes import by_id
from harness.diagnosis.choosing import Choice, choose
from harness.diagnosis.missing import missing
from harness.diagnosis.prefixes import split
from harness.diagnosis.reading import Reader
from harness.diagnosis.scanning import Scanner
from harness.diagnosis.values import Confidence, Diagnosis, Event
from harness.verdicts import Verdict

_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|<frozen|<string>")
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"(\xb5/\xfd": "zstd",
    b"PK\x03\x04": "a zip archive",
}
_OF_RANK = re.compile(r"/(\d{1,5})/std(?:out|err)\.log$|rank[_-]?(\d{1,5})\b")
_LOST_PEERS = ("LG070", "LG073", "LG074")


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
    scanner, readers = Scanner(hosts or {}), list[Reader]()
    for stream in streams:
        reader = Reader(stream)
        scanner.begin(sum(r.lines for r in readers), _rank_of(getattr(stream, "name", "")))
        for line in reader:
            scanner.line(line)
        scanner.end()
        readers.append(reader)
    size = sum(reader.size for reader in readers)
    if not size and verdict is None:
        return Diagnosis("empty", title="the log is empty")
    lines = sum(reader.lines for reader in readers)
    if any(reader.nulls * 50 > reader.size or _packed(reader) for reader in readers):
        return replace(_no_text(readers), num_lines=lines, num_bytes=size)
    progress = [reader.progress for reader in readers]
    ended_well = scanner.finished > 0 and not any(e.level == "end" for e in scanner.events)
    world = scanner.world or len(scanner.ranks)
    talkers = max(len(reader.talkers) for reader in readers)
    choice = choose(
        scanner.events, progress, world, talkers, went_back=scanner.went_back or len(readers) > 1, ended_well=ended_well
    )
    if verdict is not None and verdict.state == "failed":
        choice = choose_by(verdict, choice)
    other_end = of_another_end(verdict, _notes(choice, scanner)) if verdict is not None else None
    answer = other_end or _answer(choice, scanner, readers, ended_well=ended_well)
    if answer.cause == "LG001" and plan:
        answer = replace(answer, notes=(*against_plan(answer.details, plan), *answer.notes))
    return replace(answer, ranks=tuple(sorted(scanner.ranks)[:4096]), num_lines=lines, num_bytes=size)


def _rank_of(name: object) -> int | None:
    """The rank whose log a file is, by torchrun's and the usual names."""
    found = _OF_RANK.search(name) if isinstance(name, str) else None
    return int(found[1] or found[2]) if found else None


def _packed(reader: Reader) -> bool:
    return any(reader.head.startswith(magic) for magic in _MAGIC)


def _no_text(readers: list[Reader]) -> Diagnosis:
    kind = next((kind for r in readers for magic, kind in _MAGIC.items() if r.head.startswith(magic)), "")
    title = f"this is no text but {kind}" if kind else "this is no text"
    change = (
        "give its unpacked text: `zcat FILE | harness explain --log -`" if kind else "give the text that a job printed"
    )
    return Diagnosis("not text", title=title, change=change)


def _answer(
    choice: Choice,
    scanner: Scanner,
    readers: list[Reader],
    *,
    ended_well: bool,
) -> Diagnosis:
    notes = _notes(choice, scanner)
    first = choice.first
    if first is not None and not first.order:
        notes = (SEEN, *notes)
    if first is None:
        waiting = _waiting_for_an_op(scanner, readers)
        if waiting is not None and not ended_well:
            return waiting
        if ended_well:
            return Diagnosis("completed", "certain", title="the job ended well", notes=notes)
        title = "nothing in the log tells of a failure"
        return Diagnosis("no failure seen", title=title, lines=_last(readers, 10), notes=notes)
    lost, how = missing(choice.others, scanner.ranks, scanner.world) if first.cause == "LG070" else ([], "")
    rank, host = _who(first, scanner)
    if lost:
        rank, host = lost[0], scanner.hosts.get(lost[0], "")
        notes = (f"missing: rank{'s' if len(lost) > 1 else ''} {_some(lost)}; {how}", *notes)
    if not host and rank is not None:
        host = scanner.hosts.get(rank, "")
    title, change = describe(first.cause)
    return Diagnosis(
        "failed",
        _confidence(choice, first),
        first.cause,
        title or _unknown_title(first),
        _short(first.text),
        change,
        rank,
        host,
        first.order,
        _where(first),
        _lines(choice, first, readers),
        notes,
        details=first.details,
    )


def describe(cause: str) -> tuple[str, str]:
    """(what happened, what to change) of a gate, a finding or a known cause; empty texts for an unknown one."""
    if not cause:
        return "", "read the lines below; the first of them is the oldest"
    if cause in by_id():
        return by_id()[cause].title, by_id()[cause].change
    from harness.gates.registry import gates
    from harness.spec.pages import pages

    change = f"`harness explain {cause}` says what to write instead; `harness validate-config` finds it before the job"
    gate = next((gate for gate in gates() if gate.id == cause), None)
    if gate is not None:
        return gate.title[0].lower() + gate.title[1:], change
    page = pages().get(cause)
    if page is None:
        return cause, f"`harness explain {cause}` says what it means"
    sentence = " ".join(page.text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    return sentence[0].lower() + sentence[1:], f"`harness explain {cause}` says what it means"


def _confidence(choice: Choice, first: Event) -> Confidence:
    if not first.cause:
        return "unknown"
    return "certain" if first.sure and not choice.contested and first.level == "root" else "likely"


def _who(first: Event, scanner: Scanner) -> tuple[int | None, str]:
    """The rank and host of the first failure; torchrun's own word where the line has none."""
    if not scanner.root or (first.rank is not None and first.level == "root"):
        return first.rank, first.host
    rank = scanner.root.get("rank", "")
    return (int(rank) if rank.isdigit() else None), first.host or scanner.root.get("host", "")


def _unknown_title(first: Event) -> str:
    if not first.order:  # the verdict's words
        return _short(first.text, 160)
    return f"an exception that is not in the catalogue: {_short(first.text, 160)}"


def _where(first: Event) -> str:
    own = [f for f in first.frames if not _LIBRARY.search(f.file)]
    frame = own[-1] if own else first.frames[-1] if first.frames else None
    return f"{frame.file}:{frame.line} in {frame.function}" if frame else ""


def _lines(choice: Choice, first: Event, readers: list[Reader]) -> tuple[tuple[int, str], ...]:
    frames = [(0, f'File "{f.file}", line {f.line}, in {f.function}') for f in first.frames[-3:]]
    rest = sorted((e for e in choice.others if e is not first), key=lambda e: e.order)
    after = [(e.order, _short(e.text, 200)) for e in rest]
    found = [*frames, *([(first.order, _short(first.text))] if first.order else [])]
    if not first.cause or first.level == "end":
        found += after[: 10 - len(found)]
        if len(found) < 10 and not frames:
            found += [line for line in _last(readers, 10 - len(found)) if line[1] not in {text for _, text in found}]
    else:
        found += after[: 6 - len(found)]
    return tuple(found[:10])


def _notes(choice: Choice, scanner: Scanner) -> tuple[str, ...]:
    notes = []
    first = choice.first
    if first is not None:
        same = sorted({e.rank for e in choice.others if e.cause == first.cause and e.rank is not None})
        if first.cause and first.cause not in _LOST_PEERS and len(same) > 1:
            notes.append(f"{len(same)} ranks say the same: {_some(same)}")
        echoes = {e.rank for e in choice.others if e.level == "echo" and e.cause != first.cause}
        if echoes and first.level != "echo":
            count = len(echoes - {None})
            ranks = f"of {count} other rank{'s' if count > 1 else ''} " if count else ""
            notes.append(f"the lost connections and time-outs {ranks}came of it")
        if choice.contested:
            notes.append("another error in the log may have come first; see the lines")
    outlived = [e for e in choice.outlived if e.level != "hint"]
    if outlived:
        notes.append(f"the job went on after {len(outlived)} earlier error line{'s' if len(outlived) > 1 else ''}")
    hints = {e.cause for e in scanner.events if e.level == "hint"}
    notes += [f"{by_id()[cause].title}: {by_id()[cause].change}" for cause in sorted(hints) if scanner.world > 8 or ()]
    return tuple(notes)


def _waiting_for_an_op(scanner: Scanner, readers: list[Reader]) -> Diagnosis | None:
    """A log whose last words are that torch looks for a compiled op."""
    last = _last(readers, 12)
    if not scanner.waiting or not any("PyTorch extensions root" in text for _, text in last):
        return None
    title, change = describe("LG026")
    message = next(iter(scanner.waiting.values()))[1]
    return Diagnosis("failed", "likely", "LG026", title, _short(message), change, lines=last[-10:])


def _last(readers: list[Reader], count: int) -> tuple[tuple[int, str], ...]:
    """The last lines that hold something."""
    found = []
    for reader in readers:
        rows = reader.tail.split(b"\n")
        number = reader.lines - len(rows) + 2
        found = [
            (number + i, _short(split(row).text))
            for i, row in enumerate(rows[-4 * count :], max(0, len(rows) - 4 * count))
        ]
    return tuple((number, text) for number, text in found if text)[-count:]


def _short(text: str, most: int = 400) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def _some(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"
