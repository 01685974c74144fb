# SPDX-License-Identifier: Apache-2.0
"""Limits of Arrow files and of rows in memory. `parquet_pages.py` reads the same of Parquet files.

A file of 33 kB may declare gigabytes: by compression, by a dictionary, by values without bytes of their own. What a
file declares is added up before Arrow allocates it, and what rows take as Python values before they become such.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.units import format_bytes

_LEAST_BYTES, _RATIO = 64 << 20, 100
"""Any file may take the first; a larger one so many times its own size. Texts are packed up to fifty times."""
_VALUE_BYTES, _ROW_BYTES = 32, 64
"""A number or a text of Python and its place in a list; a list or a map."""
_COLUMN_BYTES = 512
"""A look at a column of a batch counts for so many, also of a batch without rows."""
_BLOCK = struct.Struct("<qi4xq")
_MAGIC = b"ARROW1"


class ByteBudget:
    """The bytes that a file may take in memory, counted down. `count_bytes` raises ArrowInvalid at their end."""

    def __init__(self, path: Path) -> None:
        self.limit = _LEAST_BYTES + _RATIO * path.stat().st_size
        self._left = self.limit

    def count_bytes(self, count: int) -> None:
        """Count `count` bytes. Raises ArrowInvalid."""
        import pyarrow as pa

        self._left -= max(0, count)
        if self._left < 0:
            raise pa.ArrowInvalid(f"it takes more than {format_bytes(self.limit)} in memory, {_RATIO} times its size")


def is_arrow_file_format(path: Path) -> bool:
    """Does it begin as the file format does? The stream format has no such mark."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def check_arrow_file(path: Path) -> None:
    """Raises ArrowInvalid where the batches and dictionaries of an Arrow file declare more bytes than it may take."""
    import pyarrow as pa

    budget = ByteBudget(path)
    with pa.memory_map(str(path)) as source:
        try:
            for message in _iter_messages(source, is_file=is_arrow_file_format(path)):
                budget.count_bytes(_declared_bytes(message))
        except (struct.error, IndexError):
            raise pa.ArrowInvalid("its metadata points outside the file") from None


def _iter_messages(source: Any, *, is_file: bool) -> Iterator[Any]:
    import pyarrow as pa

    if not is_file:
        yield from pa.ipc.MessageReader.open_stream(source)
        return
    size = source.size()
    source.seek(max(0, size - len(_MAGIC) - 4))
    (length,) = struct.unpack("<i", source.read(4))
    if not 0 < length <= size:
        raise pa.ArrowInvalid("its footer is incomplete")
    source.seek(max(0, size - len(_MAGIC) - 4 - length))
    footer = _Table.of_root(source.read(length))
    for field in (2, 3):  # dictionaries, record batches
        for offset, _, _ in footer.structs(field, _BLOCK):
            source.seek(offset)
            yield pa.ipc.read_message(source)


def _declared_bytes(message: Any) -> int:
    """The bytes of a batch's buffers in memory. A compressed one begins with its size, -1 for one that is not."""
    if message.type not in ("record batch", "dictionary"):
        return 0
    batch = _Table.of_root(message.metadata.to_pybytes()).table(2)
    if batch is not None and message.type == "dictionary":
        batch = batch.table(1)
    body = message.body
    if batch is None or body is None or batch.table(3) is None:
        return 0 if body is None else int(body.size)
    total = 0
    view = memoryview(body)
    for offset, length in batch.structs(2, struct.Struct("<qq")):
        total += _ROW_BYTES
        if length >= 8:
            total += max(length, struct.unpack_from("<q", view, offset)[0])
    return total


class _Table:
    """A table of a FlatBuffer, https://flatbuffers.dev/internals: the fields by their number."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._at = content, at
        self._vtable = at - self._number("<i", at)

    @classmethod
    def of_root(cls, content: bytes) -> _Table:
        return cls(content, struct.unpack_from("<I", content, 0)[0])

    def _number(self, kind: str, at: int) -> int:
        if at < 0:
            raise IndexError
        return int(struct.unpack_from(kind, self._content, at)[0])

    def _place(self, field: int) -> int | None:
        """Offset of the table or the vector of this field; None without it."""
        slot = 4 + 2 * field
        distance = self._number("<H", self._vtable + slot) if slot < self._number("<H", self._vtable) else 0
        return self._at + distance + self._number("<I", self._at + distance) if distance else None

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self._content, place)

    def structs(self, field: int, kind: struct.Struct) -> Iterator[tuple[int, ...]]:
        place = self._place(field)
        if place is not None:
            for index in range(self._number("<I", place)):
                yield kind.unpack_from(self._content, place + 4 + index * kind.size)


def count_python_bytes(array: Any) -> int:
    """About the bytes of an array's values in Python. Raises ArrowNotImplementedError for types whose values share
    memory, which no writer of data sets uses.
    """
    import pyarrow as pa

    kind, count, types = array.type, len(array), pa.types
    if isinstance(array, pa.ExtensionArray):
        return count_python_bytes(array.storage)
    if types.is_dictionary(kind):
        indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return _VALUE_BYTES * count + (_sum_lengths(array.dictionary, indices) if len(array.dictionary) else 0)
    if types.is_struct(kind):
        return _ROW_BYTES * count + sum(count_python_bytes(array.field(i)) for i in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        first, last = (array.offsets[i].as_py() for i in (0, len(array.offsets) - 1))
        return _ROW_BYTES * count + count_python_bytes(array.values.slice(first, last - first))
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        return _ROW_BYTES * count + count_python_bytes(array.values.slice(array.offset * size, count * size))
    return _VALUE_BYTES * count + _sum_lengths(array, np.arange(count))


def _sum_lengths(array: Any, indices: np.ndarray) -> int:
    """The bytes of the values at `indices`, beyond those of any number."""
    import pyarrow as pa

    kind, types = array.type, pa.types
    if types.is_fixed_size_binary(kind):
        return int(kind.byte_width) * len(indices)
    if types.is_null(kind) or types.is_primitive(kind) or types.is_decimal(kind):
        return 0
    is_view = kind in (pa.string_view(), pa.binary_view())
    is_long = types.is_large_string(kind) or types.is_large_binary(kind)
    if not (is_view or is_long or types.is_string(kind) or types.is_binary(kind)):
        raise pa.ArrowNotImplementedError(
            f"values of the type `{str(kind)[:60]}` are not read: write them as plain ones"
        )
    buffer = array.buffers()[1]
    if buffer is None or not len(indices):
        return 0
    places = indices + array.offset
    numbers = np.frombuffer(buffer, dtype=np.int64 if is_long else np.int32)
    lengths = numbers[4 * places] if is_view else numbers[places + 1].astype(np.int64) - numbers[places]
    return int(lengths.astype(np.int64).sum())


def count_row_bytes(batch: Any) -> int:
    """About the bytes of a batch's rows as maps in Python."""
    return sum(map(count_python_bytes, batch.columns), _ROW_BYTES * batch.num_rows)


def iter_small_batches(batch: Any, budget: ByteBudget, rows: int) -> Iterator[Any]:
    """The batch in parts of at most `rows` rows, which take at most 64 MiB in Python each, unless one row does. Raises
    ArrowInvalid where the budget is used up.
    """
    budget.count_bytes(_COLUMN_BYTES * batch.num_columns)
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        count = count_row_bytes(part)
        if count > _LEAST_BYTES and part.num_rows > 1:
            yield from iter_small_batches(part, budget, (part.num_rows + 1) // 2)
        else:
            budget.count_bytes(count)
            yield part
