# SPDX-License-Identifier: Apache-2.0
"""From the streams of a log to its diagnosis: read, scan, select the first cause, explain it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, BinaryIO

from harness.diagnosis.diagnosis_types import Diagnosis
from harness.diagnosis.explanation import collect_notes, explain_selection
from harness.diagnosis.first_cause import select_first_cause
from harness.diagnosis.log_reader import LogReader
from harness.diagnosis.log_scanner import LogScanner
from harness.diagnosis.plan_comparison import compare_with_plan
from harness.diagnosis.verdict_priority import diagnose_clean_end, follow_verdict, select_by_verdict
from harness.verdicts import Verdict

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"(\xb5/\xfd": "zstd",
    b"PK\x03\x04": "a zip archive",
}
_RANK_LOG_NAME = re.compile(r"/(\d{1,5})/std(?:out|err)\.log$|rank[_-]?(\d{1,5})\b")


def diagnose(
    streams: Iterable[BinaryIO],
    *,
    plan: Mapping[str, Any] | None = None,
    hosts: Mapping[int, str] | None = None,
    verdict: Verdict | None = None,
) -> Diagnosis:
    """The first cause in one or several logs of one job, read one after the other.

    `plan` is the `plan.json` of the run, `hosts` the hosts of its ranks, `verdict` that of its supervisor, which comes
    before the logs. Memory stays bounded for logs of any size. Raises OSError when a stream cannot be read.
    """
    scanner, readers = LogScanner(hosts or {}), list[LogReader]()
    for stream in streams:
        reader = LogReader(stream)
        scanner.start_log(sum(r.lines for r in readers), _rank_of(getattr(stream, "name", "")))
        for line in reader:
            scanner.scan_line(line)
        scanner.finish_log()
        readers.append(reader)
    num_bytes = sum(reader.size for reader in readers)
    if not num_bytes and verdict is None:
        return Diagnosis("empty", title="the log is empty")
    num_lines = sum(reader.lines for reader in readers)
    if any(reader.nulls * 50 > reader.size or _is_compressed(reader) for reader in readers):
        return replace(_diagnose_binary_file(readers), num_lines=num_lines, num_bytes=num_bytes)
    progress = [reader.progress for reader in readers]
    is_completed = scanner.num_clean_exits > 0 and not any(e.level == "end" for e in scanner.events)
    num_ranks = scanner.world_size or len(scanner.ranks)
    num_writers = max(len(reader.writers) for reader in readers)
    selection = select_first_cause(
        scanner.events,
        progress,
        num_ranks,
        num_writers,
        clock_went_back=scanner.clock_went_back or len(readers) > 1,
        is_completed=is_completed,
    )
    if verdict is not None and verdict.state == "failed":
        selection = select_by_verdict(verdict, selection)
    clean_end = diagnose_clean_end(verdict, collect_notes(selection, scanner)) if verdict is not None else None
    diagnosis = clean_end or explain_selection(selection, scanner, readers, is_completed=is_completed)
    diagnosis = follow_verdict(diagnosis, verdict) if verdict is not None else diagnosis
    if diagnosis.cause == "LG001" and plan:
        diagnosis = replace(diagnosis, notes=(*compare_with_plan(diagnosis.details, plan), *diagnosis.notes))
    return replace(diagnosis, ranks=tuple(sorted(scanner.ranks)[:4096]), num_lines=num_lines, num_bytes=num_bytes)


def _rank_of(name: object) -> int | None:
    """The rank of a log file, by torchrun's and other usual names."""
    match = _RANK_LOG_NAME.search(name) if isinstance(name, str) else None
    return int(match[1] or match[2]) if match else None


def _is_compressed(reader: LogReader) -> bool:
    return any(reader.head.startswith(magic) for magic in _MAGIC)


def _diagnose_binary_file(readers: list[LogReader]) -> Diagnosis:
    kind = next((kind for r in readers for magic, kind in _MAGIC.items() if r.head.startswith(magic)), "")
    title = f"this is no text but {kind}" if kind else "this is no text"
    change = (
        "give its unpacked text: `zcat FILE | harness explain --log -`" if kind else "give the text that a job printed"
    )
    return Diagnosis("not text", title=title, change=change)
