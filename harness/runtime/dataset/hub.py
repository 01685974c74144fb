# SPDX-License-Identifier: Apache-2.0
"""Data sets through the `datasets` library: of the Hub by name, or in a local folder with the same layout."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.runtime.dataset.folder_checks import check_folder
from harness.runtime.dataset.record import BadRecord, OnBytesRead, RawRecord, SourcePart
from harness.runtime.user_errors import user_error
from harness.spec.sections.data_spec import DataSource

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
