# SPDX-License-Identifier: Apache-2.0
"""Data sets through the `datasets` library: of the Hub by name, or in a local folder with the same layout.

A folder that somebody else made is bounded before: the library follows the settings of `README.md` to any file and
address, unpacks files to disk without a bound, and reads Arrow and Parquet files whole.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

from harness import input_limits
from harness.errors import UserError, user_error
from harness.file_io import read_regular
from harness.runtime.dataset.columnar_limits import ByteBudget
from harness.runtime.dataset.file_readers import check_columnar_file
from harness.runtime.dataset.record import BadRecord, OnBytesRead, RawRecord, SourcePart
from harness.spec.parse import yaml_parser
from harness.spec.sections.data_spec import DataSource

_SETTINGS = ("README.md", ".huggingface.yaml")
_HEADER = re.compile(r"\s*---[\r\n]+(.*?)[\r\n]+---(?:[\r\n]|$)", re.DOTALL)
_CHUNK = 1 << 20
_ZIP = b"PK\x03\x04"
_UNBOUNDED = {b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!\x1a\x07": "RAR"}
_BATCH_ROWS = 256


def load_hub_dataset(source: DataSource, key: str, *, streaming: bool, hash_file: Callable[[Path], str]) -> SourcePart:
    """One split as a part. Raises UserError (MD111, MD116)."""
    folder = Path(source.path)
    if folder.is_dir() and not any(p.is_file() for p in folder.rglob("*")):
        raise user_error(
            "MD111", f"`{source.path}` is a directory without files", key=key, fix=f"name files in `{key}`"
        )
    _check_folder(folder, key)
    table = _load_table(source, key, streaming=streaming)
    name = " ".join(part for part in (source.path, source.name, source.split) if part)
    identity = _content_identity(source, table, hash_file, key)
    return SourcePart(name, "row", 0, f"{identity} {source.name} {source.split}", _make_reader(table, source.path, key))


def _check_folder(folder: Path, key: str) -> None:
    try:
        if folder.is_dir():
            check_folder(folder)
    except (ValueError, OSError) as error:
        raise _unreadable_error(str(folder), key, error) from None


def _load_table(source: DataSource, key: str, *, streaming: bool) -> Any:
    import datasets  # takes a second, and only these sources need it

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(source.path, source.name, split=source.split, streaming=streaming)
    except Exception as error:  # `datasets` raises what its readers raise: pyarrow's, pandas', the Hub client's
        raise _unreadable_error(source.path, key, error) from None


def _unreadable_error(where: str, key: str, error: Exception) -> Exception:
    cause = error.__cause__ or error
    note = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return user_error("MD116", f"`{where}` cannot be read", key=key, notes=(note,))


def _content_identity(source: DataSource, table: Any, hash_file: Callable[[Path], str], key: str) -> str:
    """Of the content: a hash of a folder's files, the commit on the Hub, or the fingerprint of `datasets`."""
    folder = Path(source.path)
    if folder.is_dir():
        digest = hashlib.sha256()
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            digest.update(f"{path.relative_to(folder)} {hash_file(path)}\n".encode())
        return digest.hexdigest()
    fingerprint = getattr(table, "_fingerprint", None)
    if fingerprint is not None:
        return str(fingerprint)
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(source.path).sha)
    except Exception as error:  # the client's, requests', the network's
        raise _unreadable_error(source.path, key, error) from None


def _make_reader(table: Any, where: str, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    def read(on_bytes_read: OnBytesRead) -> Iterator[RawRecord]:
        number = 0
        try:
            for row in _iter_rows(table):
                number += 1
                on_bytes_read(0)
                yield RawRecord(number, row)
        except Exception as error:
            if isinstance(error, BadRecord):
                raise
            raise _unreadable_error(f"{where}, after row {number}", key, error) from None

    return read


def _iter_rows(table: Any) -> Iterator[dict[str, Any]]:
    if not hasattr(table, "with_format") or not hasattr(table, "num_rows"):
        yield from table
        return
    for batch in table.with_format("arrow").iter(_BATCH_ROWS):
        yield from batch.to_pylist()


def check_folder(folder: Path) -> None:
    """Raises ValueError or OSError for a folder whose settings leave it, or whose files unpack to far more than their
    sizes.
    """
    import pyarrow as pa

    for name in _SETTINGS:
        if (folder / name).is_file():
            _check_settings(folder / name)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            try:
                _check_file(path)
            except (zipfile.BadZipFile, pa.ArrowException, UnicodeDecodeError) as error:
                raise ValueError(f"`{path.relative_to(folder)}`: {error}") from None


def _check_settings(path: Path) -> None:
    text = read_regular(path, input_limits.CONFIGURATION).decode("utf-8", "replace")
    header = _HEADER.match(text)
    if path.suffix == ".md":
        text = header[1] if header else ""
    if not text.strip():
        return
    try:
        settings = yaml_parser.parse(text, path.name).data
    except UserError as error:
        raise ValueError(f"`{path.name}`: {error.findings[0].message}") from None
    for name in _iter_named_files(settings.get("configs"), named=False):
        if name.startswith(("/", "~")) or ":" in name or ".." in PurePath(name).parts:
            raise ValueError(f"`{path.name}` names data outside of the folder: `{name[:60]}`")


def _iter_named_files(value: Any, *, named: bool) -> Iterator[str]:
    """Texts below `data_files` and `data_dir`."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _iter_named_files(child, named=named or key in ("data_files", "data_dir"))
    elif isinstance(value, list):
        for child in value:
            yield from _iter_named_files(child, named=named)
    elif named and isinstance(value, str):
        yield value


def _check_file(path: Path) -> None:
    """`datasets` goes by the first bytes, whatever the name."""
    with path.open("rb") as file:
        head = file.read(8)
    kind = next((kind for magic, kind in _UNBOUNDED.items() if head.startswith(magic)), None)
    if kind is not None:
        raise ValueError(f"`{path.name}` is packed as {kind}, which is not read: unpack it")
    if path.suffix.lower() in (".parquet", ".arrow") and not head.startswith(tuple(_OPENERS)):
        check_columnar_file(path)
    elif head.startswith(_ZIP):
        with zipfile.ZipFile(path) as archive:
            budget = ByteBudget(path)
            for member in archive.infolist():
                budget.count_bytes(member.file_size)
    else:
        opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
        if opener is not None:
            _count_unpacked(path, opener)


def _count_unpacked(path: Path, opener: Callable[[Path], Any]) -> None:
    budget = ByteBudget(path)
    try:
        with opener(path) as stream:
            while chunk := stream.read(_CHUNK):
                budget.count_bytes(len(chunk))
    except (EOFError, lzma.LZMAError, zlib.error):
        raise ValueError(f"`{path.name}` is damaged or truncated") from None


def _open_by_arrow(codec: str) -> Callable[[Path], Any]:
    def opener(path: Path) -> Any:
        import pyarrow as pa

        return pa.input_stream(str(path), compression=codec)

    return opener


_OPENERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_by_arrow("zstd"),
    b"\x04\x22\x4d\x18": _open_by_arrow("lz4"),
}
