# SPDX-License-Identifier: Apache-2.0
"""The pages of a Parquet file: the sizes in their own headers, which decide what a reader allocates.

The footer has sizes, too, and may lie. pyarrow does not expose pages, and a column chunk with wrong statistics crashes
its process, so the footer is read here as well. Format: https://parquet.apache.org/docs/file-format/, in
Thrift's compact protocol.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness.runtime.dataset.columnar_limits import ByteBudget

_VALUE_BYTES = 8
"""Of a decoded number; those of texts are counted once they are decoded."""
_PAGE_BYTES = 1 << 10
"""The read of a page's header counts for so many: columns may share their pages."""
_BATCH_BYTES, _BATCH_ROWS = 64 << 20, 256
_DICTIONARY_PAGE = 2
_OF_DICTIONARY, _PREFIXES = (2, 8), 7
"""Encodings: PLAIN_DICTIONARY and RLE_DICTIONARY, and DELTA_BYTE_ARRAY, where a value repeats the start of the last."""
_MAX_DEPTH = 16
_END = 8
"""Bytes behind the footer: its length, and `PAR1`."""


class ParquetReads(NamedTuple):
    """Rows that may be decoded at once, and the columns whose values stay in their dictionary: one row of them may have
    any number of values.
    """

    batch_rows: int
    dictionaries: list[str]


class _Page(NamedTuple):
    kind: int
    size: int
    num_values: int
    encoding: int
    """-1 for a page without values."""


def plan_parquet_reads(path: Path, schema: Any) -> ParquetReads:
    """The reads that decode the rows within bounds. `schema`: of `pyarrow.parquet`. Raises ArrowInvalid where the pages
    declare more bytes or values than the file may take.
    """
    import pyarrow as pa

    budget = ByteBudget(path)
    largest, dictionaries = 1, set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for index, chunk in _iter_column_chunks(content):
            if index >= len(schema):
                raise pa.ArrowInvalid("a row group has more columns than the file")
            kind = schema.column(index)
            repeated = possible = 0  # bytes that values may repeat, and what all of them would take
            has_prefixes = False
            for page in _iter_pages(content, chunk):
                budget.count_bytes(_PAGE_BYTES + page.size)
                budget.count_bytes(max(_VALUE_BYTES, kind.length or 0) * page.num_values)
                has_prefixes |= page.encoding == _PREFIXES
                if page.kind == _DICTIONARY_PAGE or page.encoding == _PREFIXES:
                    repeated = max(repeated, page.size)
                if page.encoding in (*_OF_DICTIONARY, _PREFIXES):
                    possible += repeated * page.num_values
            if kind.max_repetition_level == 0 or possible <= budget.limit:
                largest = max(largest, repeated)
            elif has_prefixes:
                raise pa.ArrowInvalid("lists of DELTA_BYTE_ARRAY are not read: write it in another encoding")
            else:
                dictionaries.add(kind.path)
    return ParquetReads(max(1, min(_BATCH_ROWS, _BATCH_BYTES // largest)), sorted(dictionaries))


def _iter_column_chunks(content: mmap.mmap) -> Iterator[tuple[int, dict[int, Any]]]:
    """The index of its column in the schema, and `ColumnMetaData`, of each column in each row group."""
    import pyarrow as pa

    start = len(content) - _END - int.from_bytes(content[-_END : 4 - _END], "little")
    try:
        footer, _ = _read_struct(content, start, 0)
        chunks = [(index, dict(c[3])) for group in footer[4] for index, c in enumerate(group[1])]
    except (IndexError, KeyError, TypeError, ValueError):
        raise pa.ArrowInvalid("its footer cannot be read") from None
    yield from chunks


def _iter_pages(content: mmap.mmap, chunk: dict[int, Any]) -> Iterator[_Page]:
    import pyarrow as pa

    try:
        num_values, size, *starts = (int(chunk[field]) for field in (5, 7, 9))
        starts += [int(chunk[11])] if chunk.get(11) else []
    except (KeyError, TypeError):
        raise pa.ArrowInvalid("its footer cannot be read") from None
    at = min(starts)
    end = at + size
    if not 0 < at <= end <= len(content):
        raise pa.ArrowInvalid("a column begins or ends outside of it")
    while at < end:
        try:
            header, at = _read_struct(content, at, 0)
            page, packed = _read_page(header)
        except (IndexError, KeyError, TypeError):
            if num_values <= 0:  # old writers count bytes behind the last page
                return
            raise pa.ArrowInvalid("the header of a page cannot be read") from None
        at += packed
        num_values -= page.num_values
        yield page


def _read_page(header: dict[int, Any]) -> tuple[_Page, int]:
    """The page, and its bytes in the file. Raises KeyError, TypeError and IndexError."""
    values = [(header[field][1], header[field][place]) for field, place in ((5, 2), (8, 4)) if field in header]
    count, encoding = values[0] if values else (0, -1)
    page = _Page(int(header[1]), int(header[2]), int(count), int(encoding))
    packed = int(header[3])
    if min(page.size, page.num_values, packed) < 0:
        raise IndexError
    return page, packed


def _read_varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError


def _read_number(content: mmap.mmap, at: int) -> tuple[int, int]:
    raw, at = _read_varint(content, at)
    return (raw >> 1) ^ -(raw & 1), at


def _read_struct(content: mmap.mmap, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """The values of a struct by their id, None for texts, and where it ends. Raises IndexError."""
    if at < 0 or depth > _MAX_DEPTH:
        raise IndexError
    fields: dict[int, Any] = {}
    number = 0
    while (head := content[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_number(content, at)
        if head & 15 in (1, 2):  # true and false
            fields[number] = head & 15 == 1
        else:
            fields[number], at = _read_value(content, at, head & 15, depth)
    return fields, at + 1


def _read_value(content: mmap.mmap, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2, 3):
        return content[at], at + 1
    if kind in (4, 5, 6):
        return _read_number(content, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = _read_varint(content, at)
        return None, at + length
    if kind in (9, 10):
        return _read_list(content, at, depth)
    if kind == 12:
        return _read_struct(content, at, depth + 1)
    raise IndexError  # no part of a footer or of a header is a map


def _read_list(content: mmap.mmap, at: int, depth: int) -> tuple[list[Any], int]:
    head, at = content[at], at + 1
    count = head >> 4
    if count == 15:
        count, at = _read_varint(content, at)
    values = []
    for _ in range(count):
        value, at = _read_value(content, at, head & 15, depth + 1)
        values.append(value)
    return values, at
