# SPDX-License-Identifier: Apache-2.0
"""The streams of a job -> its logs: each is unpacked, read and scanned; dumps and error files among them are parsed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from harness.diagnosis.diagnosis_types import Diagnosis
from harness.diagnosis.evidence.flight_recorder import MAX_DUMP_BYTES, FlightDump, is_flight_dump, read_flight_dump
from harness.diagnosis.evidence.stack_traces import StackPlace
from harness.diagnosis.first_cause import FIRST_DATE
from harness.diagnosis.reader.line_prefix import parse_line
from harness.diagnosis.reader.log_archives import NULL_RUN, ChainedStream, PeekedStream, Readable, open_logs
from harness.diagnosis.reader.log_files import parse_log_name
from harness.diagnosis.reader.log_reader import LineKinds, LogReader
from harness.diagnosis.reader.log_scanner import LogScanner

_MAX_ERROR_FILE_BYTES = 1 << 20
_START_MARGIN = 300.0
"""Seconds before a job's first line in which a failure may still be its own."""
_NULLS_OF_TEXT = 50
"""Text has fewer null bytes than one in so many."""
_TEXT_BYTES = bytes({7, 8, 9, 10, 12, 13, 27} | set(range(32, 256)))
_CONTROLS_OF_TEXT = 20
"""Text begins with fewer control characters than one in so many, apart from those of terminals."""


@dataclass
class JobLogs:
    """All that was read: logs, dumps of the flight recorder, and what was left out, in words."""

    readers: list[LogReader] = field(default_factory=list)
    dumps: list[FlightDump] = field(default_factory=list)
    dump_places: list[StackPlace] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    @property
    def num_lines(self) -> int:
        """The lines of all logs so far."""
        return self.readers[-1].first_line + self.readers[-1].lines if self.readers else 0


def read_logs(streams: Iterable[BinaryIO], scanner: LogScanner) -> JobLogs:
    """Read all logs, one after the other, and scan their lines. Raises OSError when a stream cannot be read."""
    logs, kinds = JobLogs(), LineKinds()
    for stream in streams:
        for log in open_logs(stream):
            peeked = PeekedStream(log)
            if is_flight_dump(peeked.head):
                _read_dump(peeked, log.name, logs, scanner)
            elif not _is_text(peeked.head):
                logs.refusals.append(f"{log.name or 'this'} is no text")
            elif not log.refusal:
                _read_text(_unfold_error_file(peeked), log.name, logs, kinds, scanner)
            logs.notes += [log.note] if log.note and not log.refusal else []
            logs.refusals += [log.refusal] if log.refusal else []
    sampled = [reader for reader in logs.readers if reader.is_sampled]
    if sampled:
        scanner.is_incomplete = True
        logs.notes.append("most lines look like failures: of each 256 KiB only some were read, and ranks may be missed")
    return logs


def _is_text(head: bytes) -> bool:
    """May these be the first bytes of a text? Holes do not count."""
    text = NULL_RUN.sub(b"", head).rstrip(b"\0")
    is_binary = (head and not text) or head.startswith(b"\x7fELF")
    return not is_binary and len(text.translate(None, _TEXT_BYTES)) * _CONTROLS_OF_TEXT <= len(text)


def _read_text(stream: Readable, name: str, logs: JobLogs, kinds: LineKinds, scanner: LogScanner) -> None:
    reader = LogReader(stream, kinds, logs.num_lines)
    reader.name = name
    scanner.start_log(logs.num_lines, parse_log_name(name))
    for line in reader:
        scanner.scan_line(line)
    scanner.finish_log(reader.lines)
    if reader.nulls * _NULLS_OF_TEXT > reader.size:
        logs.refusals.append(f"{name or 'this'} is no text")
        scanner.drop_log()
        reader.size = reader.lines = 0
    if logs.readers:
        logs.readers[-1].forget_tail()
    logs.readers.append(reader)


def _read_dump(stream: Readable, name: str, logs: JobLogs, scanner: LogScanner) -> None:
    parts, size = list[bytes](), 0
    while size <= MAX_DUMP_BYTES and (data := stream.read(1 << 20)):
        parts.append(data)
        size += len(data)
    try:
        logs.dumps.append(read_flight_dump(b"".join(parts), name, len(logs.dumps)))
    except ValueError as error:
        logs.refusals.append(f"{name or 'this flight-recorder dump'} cannot be read: {error}")
        return
    scanner.start_log(logs.num_lines, parse_log_name(name))
    logs.dump_places.append(StackPlace(logs.num_lines + 1, len(logs.readers), 0))
    reader = LogReader(io.BytesIO(), None, logs.num_lines)
    reader.name, reader.lines, reader.size = name, 1, size
    logs.readers.append(reader)


def _unfold_error_file(stream: PeekedStream) -> Readable:
    """The traceback in torchelastic's `error.json`, as lines; any other stream as it is."""
    if not stream.head.lstrip().startswith(b'{"message":'):
        return stream
    data = b""
    while len(data) < _MAX_ERROR_FILE_BYTES and (part := stream.read(1 << 16)):
        data += part
    try:
        message = json.loads(data)["message"]
        text = message if isinstance(message, str) else message["extraInfo"].get("py_callstack") or message["message"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ChainedStream(data, stream)  # a log of JSON lines, or a file that was cut
    return io.BytesIO(str(text).encode("utf-8", "replace"))


def drop_older_events(scanner: LogScanner, readers: list[LogReader]) -> tuple[str, ...]:
    """Forget failures from before the job, as `dmesg` keeps them; a note on them. The job begins with the first clock
    of a log that shows progress.
    """
    clocks = [[parse_line(row).time for row in r.head.split(b"\n")] for r in readers if r.progress]
    times = [next((time for time in clock if time is not None), None) for clock in clocks]
    starts = [time for time in times if time is not None and time >= FIRST_DATE]
    if not starts or len(readers) < 2:
        return ()
    start = min(starts) - _START_MARGIN
    older = {id(e) for e in scanner.events if e.has_own_time and e.time is not None and FIRST_DATE <= e.time < start}
    scanner.events = [event for event in scanner.events if id(event) not in older]
    if not older:
        return ()
    count = len(older)
    return (f"{count} failure{'s' if count > 1 else ''} from before the job {'were' if count > 1 else 'was'} left out",)


def locate_lines(diagnosis: Diagnosis, readers: list[LogReader]) -> Diagnosis:
    """The diagnosis with the log of each line, and line numbers that count in it. One log needs no name."""
    names = [reader.name for reader in readers]
    if len(readers) < 2 or not all(names):
        return diagnosis

    def locate(number: int) -> tuple[str, int]:
        reader = next((r for r in reversed(readers) if r.first_line < number), readers[0])
        return (reader.name, number - reader.first_line) if number else ("", 0)

    file, line = locate(diagnosis.line)
    places = [locate(number) for number, _ in diagnosis.lines]
    return replace(
        diagnosis,
        file=file,
        line=line,
        line_files=tuple(name for name, _ in places),
        lines=tuple((number, text) for (_, number), (_, text) in zip(places, diagnosis.lines, strict=True)),
    )
