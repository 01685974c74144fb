# SPDX-License-Identifier: Apache-2.0
"""Logs as they are stored -> their text: gzip, bzip2, xz, zstd, zip, tar, UTF-16. Streamed, in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol, cast

from harness.units import format_bytes

_READ_BYTES = 1 << 16
_HEAD_BYTES = 1024
_MAX_MEMBERS = 512
MAX_RATIO = 300
"""A file that unpacks to more than `FREE_BYTES` and to more than this times its packed size is read no further."""
FREE_BYTES = 1 << 30
_MAX_XZ_MEMORY = 256 << 20
_UTF_BYTE_MARKS = {
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"\xef\xbb\xbf": "utf-8-sig",
}
_LOG_MEMBER = re.compile(r"(?:\.(?:log|out|err|txt)(?:[.-]\d+)?|(?:^|/)[^./]+)$")
NULL_RUN = re.compile(rb"\0{32,}")
"""A hole: of a log that was truncated while its writer went on, or of a file system that lost a block."""
_MAX_LEADING_NULLS = 1 << 29
_DAMAGES = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, RuntimeError)


class Readable(Protocol):
    """A source of bytes to read."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most `size`; empty at the end."""
        ...


class LogText:
    """The text of one log: bytes of UTF-8, or of what the file holds. `note` says, once read, what was left out;
    `refusal` why the file cannot be read at all.
    """

    def __init__(self, name: str, source: Readable, note: str = "", refusal: str = "") -> None:
        self.name, self.note, self.refusal = name, note, refusal
        self._source = source
        self._size = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes. What is damaged ends there."""
        try:
            data = self._source.read(size)
        except _TooLarge as error:
            data = b""
            self.note = f"{self.name or 'the log'} {error}: only the first {format_bytes(self._size)} were read"
        except _DAMAGES as error:
            data, reason = b"", f"{self.name or 'the log'} is damaged or cut ({str(error) or type(error).__name__})"
            self.note = f"{reason}: only the first {format_bytes(self._size)} of its text were read"
            self.refusal = "" if self._size else f"{reason}, and nothing of it can be read"
        self._size += len(data)
        return data


class _TooLarge(Exception):
    """A file unpacks to far more than a log does."""


def open_logs(stream: BinaryIO) -> Iterator[LogText]:
    """The logs that a stream holds: one, or those of an archive. Each is to be read before the next is asked for.
    Raises OSError when the stream itself cannot be read.
    """
    name = getattr(stream, "name", "")
    yield from _open_packed(stream, name if isinstance(name, str) else "", 0)


def _open_packed(stream: Readable, name: str, depth: int) -> Iterator[LogText]:
    counted = PeekedStream(stream)
    if counted.head.startswith(bytes(64)):
        _skip_holes(stream)
        counted = PeekedStream(_skip_nulls(counted))
        if not counted.head:
            yield LogText(name, io.BytesIO(), refusal=f"{name or 'this'} is no text")
            return
    head = counted.head
    for magic, (kind, open_stream) in _CODECS.items():
        if head.startswith(magic) and depth < 3:
            unpacked = open_stream(counted)
            if unpacked is None:
                yield LogText(name, io.BytesIO(), refusal=f"this is no text but {kind}, which needs `backports.zstd`")
                return
            yield from _open_unpacked(_LimitedStream(unpacked, counted), name, depth)
            return
    if head.startswith(b"PK\x03\x04"):
        yield from _open_zip(stream, name)
    elif head[257:262] == b"ustar":
        yield from _open_tar(counted, name)
    else:
        _skip_holes(stream)
        encoding = next((text for mark, text in _UTF_BYTE_MARKS.items() if head.startswith(mark)), "")
        encoding = encoding or _guess_encoding(head)
        yield LogText(name, _Recoded(counted, encoding) if encoding else counted)


def _skip_holes(stream: Readable) -> None:
    """From here on, leave out the holes of a file that is open under its name."""
    if skip_holes := getattr(stream, "skip_holes", None):
        skip_holes()


def _open_unpacked(stream: Readable, name: str, depth: int) -> Iterator[LogText]:
    """The logs in what a codec yields, whose first bytes may already show that it is damaged."""
    try:
        yield from _open_packed(stream, name, depth + 1)
    except _DAMAGES as error:
        reason = f"{name or 'the log'} is damaged or cut ({str(error) or type(error).__name__})"
        yield LogText(name, io.BytesIO(), refusal=f"{reason}, and nothing of it can be read")


def _open_zip(stream: Readable, name: str) -> Iterator[LogText]:
    file: Any = stream
    if not (hasattr(file, "seekable") and file.seekable()):
        yield LogText(name, io.BytesIO(), refusal="this is no text but a zip archive, which cannot be read from a pipe")
        return
    num_logs = packed = unpacked = 0
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.is_dir() or not _LOG_MEMBER.search(member.filename) or num_logs >= _MAX_MEMBERS:
                    continue
                if _is_too_large(unpacked, packed):
                    break  # the note of the member before says so
                num_logs += 1
                packed += member.compress_size
                with archive.open(member) as content:
                    limited = _LimitedStream(content, _Size(packed), unpacked)
                    yield from _open_unpacked(limited, f"{name}/{member.filename}", 2)
                    unpacked = limited.size
    except _DAMAGES as error:
        yield LogText(name, io.BytesIO(), refusal=f"this zip archive cannot be read: {error}")
        return
    if not num_logs:
        yield LogText(name, io.BytesIO(), refusal="this is no text but a zip archive without logs")


def _open_tar(stream: Readable, name: str) -> Iterator[LogText]:
    num_logs = num_opened = 0
    file: Any = stream
    try:
        with tarfile.open(fileobj=file, mode="r|", bufsize=_READ_BYTES) as archive:
            for member in archive:
                is_log = member.isfile() and not member.issparse() and _LOG_MEMBER.search(member.name)
                content = archive.extractfile(member) if is_log else None
                if content is not None and num_logs < _MAX_MEMBERS:
                    num_logs += 1
                    for log in _open_packed(content, f"{name}/{member.name}", 2):
                        num_opened += 1
                        yield log
    except _DAMAGES as error:
        note = f"the archive {name} is damaged or cut after {num_logs} logs: {error}"
        yield LogText(name, io.BytesIO(), note=note, refusal="" if num_opened else note)
        return
    if not num_logs:
        yield LogText(name, io.BytesIO(), refusal="this is no text but a tar archive without logs")


def _guess_encoding(head: bytes) -> str:
    """UTF-16 without its mark, as a part of a file has it: every other byte of most texts is null."""
    half = len(head) // 2
    if half >= 16 and b"\0" in head:
        even, odd = head[::2].count(0), head[1::2].count(0)
        if odd > 0.8 * half and even < 0.1 * half:
            return "utf-16-le"
        if even > 0.8 * half and odd < 0.1 * half:
            return "utf-16-be"
    return ""


def _skip_nulls(stream: Readable) -> Readable:
    """The stream from its first byte that is not null; an empty one where it has too many."""
    size = 0
    while size < _MAX_LEADING_NULLS and (data := stream.read(_READ_BYTES)):
        size += len(data)
        if rest := data.lstrip(b"\0"):
            return ChainedStream(rest, stream)
    return io.BytesIO()


class _Size:
    """A packed size that is known beforehand."""

    def __init__(self, size: int) -> None:
        self.size = size


class PeekedStream:
    """A stream whose first bytes are looked at before it is read. `size` counts what was read of it."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.head = b""
        while len(self.head) < _HEAD_BYTES and (data := stream.read(_HEAD_BYTES - len(self.head))):
            self.head += data
        self._rest = self.head
        self.size = len(self.head)

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        if self._rest:
            data, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
            return data
        data = self._stream.read(size)
        self.size += len(data)
        return data


class ChainedStream:
    """Bytes that were read already, and the rest of their stream."""

    def __init__(self, data: bytes, rest: Readable) -> None:
        self._data, self._rest = io.BytesIO(data), rest

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        return self._data.read(size) or self._rest.read(size)


class _LimitedStream:
    """An unpacked stream that ends where it is far larger than a log that packs to this size can be."""

    def __init__(self, stream: Readable, packed: PeekedStream | _Size, size: int = 0) -> None:
        """`size` counts the bytes of the archive's members before this one, as `packed` does."""
        self._stream, self._packed, self.size = stream, packed, size

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        if _is_too_large(self.size, self._packed.size):
            raise _TooLarge(f"unpacks to more than {MAX_RATIO} times its size")
        data = self._stream.read(_READ_BYTES if size < 0 else min(size, _READ_BYTES))
        self.size += len(data)
        return data


def _is_too_large(size: int, packed: int) -> bool:
    return size > FREE_BYTES and size > MAX_RATIO * packed


class _Recoded:
    """Text of another encoding as UTF-8."""

    def __init__(self, stream: Readable, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        while data := self._stream.read(_READ_BYTES if size < 0 else min(size, _READ_BYTES)):
            if text := self._decoder.decode(data):
                return text.encode("utf-8", "replace")
        return self._decoder.decode(b"", final=True).encode("utf-8", "replace")


class _Decompressed:
    """The frames of a compressed stream, one after the other, as bz2, lzma and zstd decompress them.

    `error` is what the decompressor raises for damaged data, where that is none of `_DAMAGES`.
    """

    def __init__(self, stream: Readable, make: Callable[[], Any], error: type[Exception] = OSError) -> None:
        self._stream, self._make, self._error = stream, make, error
        self._decompressor = make()

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        while True:
            decompressor, packed = self._decompressor, b""
            if decompressor.eof:
                packed = decompressor.unused_data.lstrip(b"\0") or self._stream.read(_READ_BYTES).lstrip(b"\0")
                if not packed:
                    return b""
                self._decompressor = decompressor = self._make()
            elif decompressor.needs_input:
                packed = self._stream.read(_READ_BYTES)
                if not packed:
                    raise EOFError("it ends in the middle")
            try:
                data = decompressor.decompress(packed, _READ_BYTES if size < 0 else size)
            except self._error as error:
                raise OSError(str(error)) from error
            if data:
                return bytes(data)


def _open_zstd(stream: Readable) -> Readable | None:
    """With Python 3.14 or the package `backports.zstd`, which is the same module; None without either."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            zstd = importlib.import_module(name)
        except ImportError:
            continue
        return _Decompressed(stream, zstd.ZstdDecompressor, zstd.ZstdError)
    return None


_CODECS: dict[bytes, tuple[str, Callable[[Readable], Readable | None]]] = {
    b"\x1f\x8b": ("gzip", lambda stream: gzip.GzipFile(fileobj=cast("Any", stream))),
    b"BZh": ("bzip2", lambda stream: _Decompressed(stream, bz2.BZ2Decompressor)),
    b"\xfd7zXZ": ("xz", lambda stream: _Decompressed(stream, lambda: lzma.LZMADecompressor(memlimit=_MAX_XZ_MEMORY))),
    b"(\xb5/\xfd": ("zstd", _open_zstd),
}
