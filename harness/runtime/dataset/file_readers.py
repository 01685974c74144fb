# SPDX-License-Identifier: Apache-2.0
"""Readers of text, CSV, Parquet and Arrow files, in constant memory. `record_formats.py` interprets the records."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from harness.runtime.dataset.columnar_limits import (
    ByteBudget,
    check_arrow_file,
    is_arrow_file_format,
    iter_small_batches,
)
from harness.runtime.dataset.parquet_pages import plan_parquet_reads
from harness.runtime.dataset.record import BadRecord, OnBytesRead, RawRecord, has_undecoded_bytes, report_os_errors
from harness.runtime.user_errors import user_error

_TEXT_CHUNK_BYTES = 1 << 20
_MAX_LINE_BYTES = 4 << 20
"""A longer line of a text is cut."""
_MAX_ROW_CHARACTERS = 32 << 20
"""Of a line or a field of CSV: the parser takes four bytes for each."""
_BATCH_ROWS = 256


def text_reader(path: Path, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """The file is one text. A very long one comes in parts that end at a line's end."""

    def read(on_bytes_read: OnBytesRead) -> Iterator[RawRecord]:
        with path.open("rb") as file:
            rest, offset = b"", 0
            while chunk := file.read(_TEXT_CHUNK_BYTES):
                on_bytes_read(len(chunk))
                piece, rest = rest + chunk, b""
                next_byte = file.peek(1) if hasattr(file, "peek") else b""
                cut = piece.rfind(b"\n") + 1 if next_byte else len(piece)
                if not cut and len(piece) < _MAX_LINE_BYTES:
                    rest = piece
                    continue
                cut = cut or _last_character(piece)
                piece, rest = piece[:cut], piece[cut:]
                yield RawRecord(1, _decode_text(piece, offset), is_last=not next_byte)
                offset += len(piece)
            if not offset and not rest:
                yield RawRecord(1, "")
            elif rest:
                yield RawRecord(1, _decode_text(rest, offset))

    return report_os_errors(read, path, key)


def _last_character(piece: bytes) -> int:
    """Offset of the last character of a text of UTF-8, which may go on behind its end."""
    return next((len(piece) - i for i in range(1, 5) if piece[-i] & 0xC0 != 0x80), len(piece))


def _decode_text(piece: bytes, offset: int) -> str | BadRecord:
    try:
        # as text mode reads: every line end is a line feed
        return piece.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        return BadRecord("bad-utf-8", f"is not UTF-8: byte {offset + error.start} cannot be decoded")


def csv_reader(path: Path, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """Rows below a header; the number is that of the row's last line."""

    def read(on_bytes_read: OnBytesRead) -> Iterator[RawRecord]:
        csv.field_size_limit(_MAX_ROW_CHARACTERS)
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            rows = csv.reader(iter(partial(file.readline, _MAX_ROW_CHARACTERS + 1), ""))
            try:
                header = next(rows, None)
            except csv.Error as error:
                yield RawRecord(rows.line_num, BadRecord("bad-row", f"the header is not CSV: {error}"))
                return
            while True:
                try:
                    row = next(rows, None)
                except csv.Error as error:
                    yield RawRecord(rows.line_num, BadRecord("bad-row", f"is not CSV: {error}"))
                    continue
                if row is None or header is None:
                    return
                on_bytes_read(sum(map(len, row)) + len(row))
                if row:
                    yield RawRecord(rows.line_num, _parse_row(header, row))

    return report_os_errors(read, path, key)


def _parse_row(header: list[str], row: list[str]) -> dict[str, Any] | BadRecord:
    if len(row) != len(header):
        return BadRecord("bad-row", f"has {len(row)} fields, the header has {len(header)}")
    values = dict(zip(header, row, strict=True))
    return BadRecord("bad-utf-8", "is not UTF-8") if has_undecoded_bytes(values) else values


def columnar_reader(path: Path, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """Rows of a Parquet or Arrow file (both the stream and the file format), a few hundred in memory at once."""

    def read(on_bytes_read: OnBytesRead) -> Iterator[RawRecord]:
        import pyarrow as pa

        number, file_bytes = 0, path.stat().st_size
        try:
            with _ColumnarFile(path) as (batches, num_rows):
                budget = ByteBudget(path)
                for batch in batches:
                    for part in iter_small_batches(batch, budget, _BATCH_ROWS):
                        for value in _iter_rows(part):
                            number += 1
                            yield RawRecord(number, value)
                    on_bytes_read(file_bytes * batch.num_rows // num_rows if num_rows else batch.nbytes)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last of a column's name
            note = (str(error).strip() or type(error).__name__).splitlines()[0]
            where = f" after row {number}" if number else ""
            raise user_error("MD116", f"`{path}` cannot be read{where}", key=key, notes=(note,)) from None

    return report_os_errors(read, path, key)


def check_columnar_file(path: Path) -> None:
    """Raises ArrowException, OSError or UnicodeDecodeError where `columnar_reader` would refuse the file's batches."""
    budget = ByteBudget(path)
    with _ColumnarFile(path) as (batches, _):
        for batch in batches:
            for _part in iter_small_batches(batch, budget, _BATCH_ROWS):
                pass


def _checked(batch: Any) -> Any:
    """The batch. Raises ArrowInvalid where offsets lead out of it: Arrow maps a file as it is, and would read any
    memory.

    Texts are looked at as bytes, since one that is not UTF-8 is a bad record of its own.
    """
    import pyarrow as pa

    for column in batch.columns:
        try:
            plain = column.view(_with_bytes(column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # such as a dictionary
            plain = column
        plain.validate(full=True)
    return batch


def _with_bytes(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.list_(_with_bytes(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_with_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _with_bytes(field.type)) for field in kind])
    return kind


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
    """A context manager of a columnar file: (record batches, number of rows; 0 where that is unknown)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> tuple[Iterator[Any], int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._path.suffix.lower() == ".parquet":
            metadata = pq.read_metadata(self._path)
            reads = plan_parquet_reads(self._path, metadata.schema)
            self._file: Any = pq.ParquetFile(self._path, metadata=metadata, read_dictionary=reads.dictionaries)
            return self._file.iter_batches(batch_size=reads.batch_rows), metadata.num_rows
        check_arrow_file(self._path)
        self._file = pa.memory_map(str(self._path))
        if not is_arrow_file_format(self._path):
            return map(_checked, pa.ipc.open_stream(self._file)), 0
        reader = pa.ipc.open_file(self._file)
        return (_checked(reader.get_batch(i)) for i in range(reader.num_record_batches)), 0

    def __exit__(self, *_: object) -> None:
        self._file.close()
