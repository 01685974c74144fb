# SPDX-License-Identifier: Apache-2.0
"""A log that simply stops -> the part of the job in which it stops. A job killed from outside leaves nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from harness.diagnosis.catalogue import CATALOGUE, causes_by_id
from harness.diagnosis.decision import FULL_PERCENT
from harness.diagnosis.diagnosis_types import STANDARD, Diagnosis, LogEvent
from harness.diagnosis.first_cause import KILLED_CAUSES, CauseSelection
from harness.entry_file import read_entries

_ENDED = re.compile(
    rb"train_runtime|[Tt]raining (?:is )?(?:completed|finished|done)|exits successfully|[Ss]aved? (?:the )?final|"
    rb"successfully finished|^(?:real|user|sys)\s+\d+m|\b[Dd]one[.!]?\s*$|[Ff]inished[.!]?\s*$|\bcompleted\b"
)
END_TEXTS = read_entries(CATALOGUE / "phases" / "log_ends.txt")
_PARTS = tuple((re.compile(fields["words"].encode()), name) for name, fields in END_TEXTS.items() if "words" in fields)
_LAST_LINES = 12
_STARTED = re.compile(rb"\[launch\.py.*spawned with command")

_NO_HOSTFILE, _HOSTS_WANTED = "LG075", "LG179"
_LOCK = re.compile(
    r"(?i)(?:attempting to acquire|waiting (?:for|on)(?: the)?)(?: file)? ?lock\b.{0,60}?(?P<path>[/~]\S+)|"
    r"\block\b.{0,40} not acquired on (?P<other>[/~][^\s,]+)"
)
_KILLING = re.compile(r"\bKilling subprocess \d+")
_STOPPED = re.compile(r"Main process received SIG|exits with return code")
_MEMORY_IN_USE = re.compile(
    rb"(?:CPU Virtual Memory|\b(?:[Hh]ost|CPU|cpu|[Ss]ystem)[ _-]?(?:memory|mem|RAM|ram)\b|\bRAM\b)[^%\n]{0,60}?"
    rb"(?P<percent>\d{1,3}(?:\.\d{1,2})?) ?%"
)
"""DeepSpeed's `see_memory_usage`, and what monitors of other programs print."""
_KILLED_CAUSE = "LG003"


_TRACKER = re.compile(r"(?:^|-packages/)(?P<name>wandb|swanlab|mlflow|comet_ml|neptune|clearml|trackio|aim)\b")
_CARRIER = re.compile(rf"{STANDARD.pattern}|-packages/(?:requests|urllib3|httpx|httpcore|aiohttp|grpc|tenacity)/")
"""Code that a tracker's request passes through."""


def diagnose_finished(selection: CauseSelection, notes: tuple[str, ...]) -> Diagnosis | None:
    """The diagnosis of a job whose training had ended when its tracker failed, and nothing else; None of any other."""
    first = selection.first
    if first is None or not (first.num_ends or first.phase.is_at_end):
        return None
    crashes = [event for event in selection.others if event.level == "root" or event.cause in KILLED_CAUSES]
    names = [_name_tracker(event) for event in (first, *crashes)]
    if not all(names):
        return None
    texts = END_TEXTS["finished"]
    return Diagnosis(
        *("completed", "likely", "LG298", texts["text"].format(name=names[0]), first.text, texts["change"]),
        line=first.line_number,
        lines=((first.line_number, first.text),),
        notes=notes,
    )


def _name_tracker(event: LogEvent) -> str:
    """The tracker whose own code raised the error; empty for any other."""
    files = [frame.file for frame in event.frames if not _CARRIER.search(frame.file)]
    match = _TRACKER.search(files[-1] if files else event.text)
    return match["name"] if match else ""


def describe_open_end(tail: bytes) -> str:
    """The next step where a log shows no failure, by its last bytes."""
    rows = [row for row in tail.split(b"\n") if row.strip()][-_LAST_LINES:]
    if not rows or any(_ENDED.search(row) for row in rows):
        return END_TEXTS["unknown"]["text"]
    if _STARTED.search(rows[-1]):
        return END_TEXTS["started"]["text"]
    parts = (name for row in reversed(rows) for pattern, name in _PARTS if pattern.search(row))
    part = next(parts, "")
    text = END_TEXTS[part].get("text", END_TEXTS["open"]["text"]) if part else END_TEXTS["unknown"]["text"]
    return text.format(part=part)


def note_memory(first: LogEvent, tail: bytes, *, has_phase: bool) -> tuple[LogEvent, tuple[str, ...]]:
    """A killed rank's event with the percent of the host's memory that was in use, and a note; the event itself where
    no line tells it. A full memory changes the advice of a job whose phase is unknown.
    """
    percent = _find_percent(tail) if first.cause == _KILLED_CAUSE else ""
    if not percent:
        return first, ()
    is_full = float(percent) >= FULL_PERCENT and not first.change and not has_phase
    details = {**first.details, "memory_percent": percent}
    first = replace(first, details=details, change=END_TEXTS["full"]["change"] if is_full else first.change)
    return first, (f"{percent} % of the host's memory was in use shortly before",)


def _find_percent(tail: bytes) -> str:
    found = [match["percent"].decode() for match in _MEMORY_IN_USE.finditer(tail)]
    return found[-1] if found and float(found[-1]) <= 100 else ""


def diagnose_silent_end(events: Sequence[LogEvent], last_lines: tuple[tuple[int, str], ...]) -> Diagnosis | None:
    """The diagnosis of a log without a failure; None where nothing points to one. `last_lines`: (number, text)."""
    killing = next((line for line in last_lines if _KILLING.search(line[1])), None)
    if killing is not None and not any(_STOPPED.search(text) for _, text in last_lines):
        (number, text), ends = killing, END_TEXTS["killed"]
        memory = _find_percent("\n".join(text for _, text in last_lines).encode())
        notes = (f"{memory} % of the host's memory was in use shortly before",) if memory else ()
        return Diagnosis(
            *("failed", "likely", "LG003", ends["text"], text, ends["change"].format(full=END_TEXTS["full"]["change"])),
            line=number,
            lines=last_lines[-10:],
            notes=notes,
            details={"memory_percent": memory} if memory else {},
        )
    waits = [(number, text, match) for number, text in last_lines if (match := _LOCK.search(text))]
    if len(waits) > 1 and waits[-1][0] == last_lines[-1][0]:
        number, text, match = waits[-1]
        title = END_TEXTS["locked"]["text"].format(path=match["path"] or match["other"])
        return Diagnosis(
            "failed", "likely", "LG026", title, text, END_TEXTS["locked"]["change"], line=number, lines=last_lines[-10:]
        )
    warning = next((e for e in events if e.cause == _NO_HOSTFILE), None)
    if warning is None:
        return None
    evidence = describe_missing_hosts(events)
    if not evidence:  # a job of one host prints it too
        return None
    cause = causes_by_id()[_NO_HOSTFILE]
    return Diagnosis(
        *("failed", "likely", _NO_HOSTFILE, cause.title, warning.text, cause.change),
        line=warning.line_number,
        lines=last_lines[-10:],
        notes=(evidence,),
    )


def describe_missing_hosts(events: Sequence[LogEvent]) -> str:
    """Evidence in the log that more hosts were wanted than the launcher started; empty where nothing does."""
    warnings = [e for e in events if e.cause == _NO_HOSTFILE]
    if not warnings:
        return ""
    hosts = sorted({e.host for e in warnings if e.host})
    if len(hosts) > 1:
        return f"{len(hosts)} hosts each started a separate run and do not train together: {', '.join(hosts[:8])}"
    wanted = next((e.details["hosts"] for e in events if e.cause == _HOSTS_WANTED and "hosts" in e.details), "")
    if wanted:
        return f"{wanted} hosts were requested, and only the ranks of this host were started"
    if not any(e.cause == _HOSTS_WANTED for e in events):
        return ""
    return "accelerate is configured for several machines, and only the ranks of this host were started"
