"""Readers of local files, in constant memory, with the number of every record. What they mean is in `formats.py`."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from harness.runtime.dataset.record import BadRecord, RawRecord
from harness.runtime.user_errors import user_error

OnBytesRead = Callable[[int], None]
_MAX_LINE_BYTES = 256 << 20
_CHUNK = 4 << 20
_TEXT_CHUNK_BYTES = 1 << 20
_BATCH_ROWS = 256
_BLANK = b" \t\r\n"
_SPACE = re.compile(r"[ \t\r\n]*")


def text_reader(path: Path, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """The file is one text. A very long one comes in parts that end at a line's end."""

    def read(tell: OnBytesRead) -> Iterator[RawRecord]:
        with path.open("rb") as file:
            rest, done = b"", 0
            while chunk := file.read(_TEXT_CHUNK_BYTES):
                tell(len(chunk))
                piece, rest = rest + chunk, b""
                ahead = file.peek(1) if hasattr(file, "peek") else b""
                cut = piece.rfind(b"\n") + 1 if ahead else len(piece)
                if not cut and len(piece) < _MAX_LINE_BYTES:
                    rest = piece
                    continue
                piece, rest = piece[: cut or len(piece)], piece[cut or len(piece) :]
                yield RawRecord(1, _decode_text(piece, done), is_last=not ahead)
                done += len(piece)
            if not done and not rest:
                yield RawRecord(1, "")
            elif rest:
                yield RawRecord(1, _decode_text(rest, done))

    return _report_os_errors(read, path, key)


def _decode_text(piece: bytes, before: int) -> str | BadRecord:
    try:
        # as text mode reads: every line end is a line feed
        return piece.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        return BadRecord("bad-utf-8", f"is not UTF-8: byte {before + error.start} cannot be decoded")


def json_lines_reader(path: Path, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """One undecoded line a record; blank lines are none."""

    def read(tell: OnBytesRead) -> Iterator[RawRecord]:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_MAX_LINE_BYTES):
                number += 1
                tell(len(line))
                if len(line) == _MAX_LINE_BYTES and not line.endswith(b"\n"):
                    while rest := file.readline(_MAX_LINE_BYTES):
                        tell(len(rest))
                        if rest.endswith(b"\n"):
                            break
                    yield RawRecord(
                        number, BadRecord("bad-json", f"the line has more than {_MAX_LINE_BYTES >> 20} MiB")
                    )
                elif line.strip(_BLANK):
                    yield RawRecord(number, line)

    return _report_os_errors(read, path, key)


def parse_json_line(line: bytes) -> dict[str, Any]:
    """A line of JSON Lines. Raises BadRecord."""
    try:
        value = json.loads(line.rstrip(_BLANK).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadRecord("bad-utf-8", f"is not UTF-8: byte {error.start} of the line cannot be decoded") from None
    except (json.JSONDecodeError, RecursionError) as error:
        why = f"{error.msg.lower()} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else "too deep"
        raise BadRecord("bad-json", f"is not JSON: {why}") from None
    if not isinstance(value, dict):
        raise BadRecord("wrong-type", f"is {json_type_name(value)}, should be an object")
    return value


def json_type_name(value: object) -> str:
    """The JSON type of a value, for a message."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def json_reader(path: Path, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """A list of objects, one at a time; or objects one after the other, such as JSON Lines under this ending."""

    def read(tell: OnBytesRead) -> Iterator[RawRecord]:
        with path.open("rb") as file:
            head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)[:1]
        if head != b"[":
            yield from json_lines_reader(path, key)(tell)
            return
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as text:
            yield from _iter_elements(text, path, key, tell)

    return _report_os_errors(read, path, key)


def _iter_elements(file: Any, path: Path, key: str, tell: OnBytesRead) -> Iterator[RawRecord]:
    """The elements of a JSON list. What is broken here leaves no way to find the next element, so it always refuses."""
    decoder, number = json.JSONDecoder(), 0
    buffer = file.read(_CHUNK)
    tell(len(buffer))
    at = _SPACE.match(buffer).end() + 1  # type: ignore[union-attr]
    while True:
        found = _next_element(decoder, buffer, at, first=not number)
        if found == "end":
            return
        if found is not None:
            number += 1
            value, at = found
            yield RawRecord(number, _check_element(value))
            continue
        buffer = buffer[at:]
        at = 0
        more = file.read(max(_CHUNK, len(buffer)))
        tell(len(more))
        if not more or len(buffer) > _MAX_LINE_BYTES:
            why = f"cannot be read after element {number}: the list is not closed, or what follows is not JSON"
            raise user_error(
                "MD120", f"`{path}` {why}", key=key, fix="mend the file, or write it as JSON Lines (.jsonl)"
            )
        buffer += more


def _next_element(
    decoder: json.JSONDecoder, buffer: str, at: int, *, first: bool
) -> tuple[Any, int] | Literal["end"] | None:
    """The element behind `at` and where it ends; None when the buffer does not hold all of it."""
    at = _SPACE.match(buffer, at).end()  # type: ignore[union-attr]
    if buffer[at : at + 1] == "]":
        return "end"
    if not first:
        if buffer[at : at + 1] != ",":
            return None
        at = _SPACE.match(buffer, at + 1).end()  # type: ignore[union-attr]
    try:
        return decoder.raw_decode(buffer, at)
    except (json.JSONDecodeError, RecursionError):
        return None


def _check_element(value: Any) -> dict[str, Any] | BadRecord:
    if not isinstance(value, dict):
        return BadRecord("wrong-type", f"is {json_type_name(value)}, should be an object")
    return BadRecord("bad-utf-8", "is not UTF-8") if _has_undecoded_bytes(value) else value


def _has_undecoded_bytes(value: Any) -> bool:
    """Does a text in it hold bytes that could not be decoded?"""
    if isinstance(value, str):
        return not value.isascii() and any("\udc80" <= c <= "\udcff" for c in value)
    if isinstance(value, dict):
        return any(_has_undecoded_bytes(v) for v in value.values())
    return isinstance(value, list) and any(_has_undecoded_bytes(v) for v in value)


def csv_reader(path: Path, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """Rows below a header; the number is that of the row's last line."""

    def read(tell: OnBytesRead) -> Iterator[RawRecord]:
        csv.field_size_limit(_MAX_LINE_BYTES)
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, None)
            while True:
                try:
                    row = next(rows, None)
                except csv.Error as error:
                    yield RawRecord(rows.line_num, BadRecord("bad-row", f"is not CSV: {error}"))
                    continue
                if row is None or header is None:
                    return
                tell(sum(map(len, row)) + len(row))
                if row:
                    yield RawRecord(rows.line_num, _parse_row(header, row))

    return _report_os_errors(read, path, key)


def _parse_row(header: list[str], row: list[str]) -> dict[str, Any] | BadRecord:
    if len(row) != len(header):
        return BadRecord("bad-row", f"has {len(row)} fields, the header has {len(header)}")
    values = dict(zip(header, row, strict=True))
    return BadRecord("bad-utf-8", "is not UTF-8") if _has_undecoded_bytes(values) else values


def columnar_reader(path: Path, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """Rows of a Parquet or Arrow file (both the stream and the file format), a few hundred in memory at once."""

    def read(tell: OnBytesRead) -> Iterator[RawRecord]:
        import pyarrow as pa

        number, total = 0, path.stat().st_size
        try:
            with _ColumnarFile(path) as (batches, rows):
                for batch in batches:
                    for start in range(0, batch.num_rows, _BATCH_ROWS):
                        for value in _iter_rows(batch.slice(start, _BATCH_ROWS)):
                            number += 1
                            yield RawRecord(number, value)
                    tell(total * batch.num_rows // rows if rows else batch.nbytes)
        except (pa.ArrowException, OSError) as error:
            note = (str(error).strip() or type(error).__name__).splitlines()[0]
            where = f" after row {number}" if number else ""
            raise user_error("MD116", f"`{path}` cannot be read{where}", key=key, notes=(note,)) from None

    return _report_os_errors(read, path, key)


def _iter_rows(batch: Any) -> Iterator[dict[str, Any] | BadRecord]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for i in range(batch.num_rows):
            try:
                yield batch.slice(i, 1).to_pylist()[0]
            except UnicodeDecodeError:
                yield BadRecord("bad-utf-8", "is not UTF-8")


class _ColumnarFile:
    """(record batches, rows in all; 0 where that is not known) of a columnar file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> tuple[Iterator[Any], int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._path.suffix.lower() == ".parquet":
            self._file: Any = pq.ParquetFile(self._path)
            return self._file.iter_batches(batch_size=_BATCH_ROWS), self._file.metadata.num_rows
        self._file = pa.memory_map(str(self._path))
        try:
            reader = pa.ipc.open_stream(self._file)
            return iter(reader), 0
        except pa.ArrowInvalid:
            opened = pa.ipc.open_file(self._file)
            return (opened.get_batch(i) for i in range(opened.num_record_batches)), 0

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _report_os_errors(
    read: Callable[[OnBytesRead], Iterator[RawRecord]], path: Path, key: str
) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    def guarded(tell: OnBytesRead) -> Iterator[RawRecord]:
        try:
            yield from read(tell)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise user_error("MD111", f"`{path}` cannot be read: {why}", key=key) from None

    return guarded
