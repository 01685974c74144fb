"""Data sets that the `datasets` library reads: of the Hub by name, or a local folder laid out like one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.runtime.corpus.record import BadRecord, Part, Raw
from harness.runtime.refusals import refusal
from harness.spec.sections.data import DataSource

Tell = Callable[[int], None]
_ROWS = 256


def dataset(source: DataSource, key: str, *, streaming: bool, hash_file: Callable[[Path], str]) -> Part:
    """One split as a part. Raises Refused (MD111, MD116)."""
    folder = Path(source.path)
    if folder.is_dir() and not any(p.is_file() for p in folder.rglob("*")):
        raise refusal("MD111", f"`{source.path}` is a directory without files", key=key, fix=f"name files in `{key}`")
    table = _load(source, key, streaming=streaming)
    name = " ".join(part for part in (source.path, source.name, source.split) if part)
    identity = _identity(source, table, hash_file, key)
    return Part(name, "row", 0, f"{identity} {source.name} {source.split}", _reader(table, source.path, key))


def _load(source: DataSource, key: str, *, streaming: bool) -> Any:
    import datasets  # takes a second, and only these need it

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(source.path, source.name, split=source.split, streaming=streaming)
    except Exception as error:  # `datasets` raises what its readers raise: pyarrow's, pandas', the Hub client's
        raise _unread(source.path, key, error) from None


def _unread(where: str, key: str, error: Exception) -> Exception:
    cause = error.__cause__ or error
    note = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return refusal("MD116", f"`{where}` cannot be read", key=key, notes=(note,))


def _identity(source: DataSource, table: Any, hash_file: Callable[[Path], str], key: str) -> str:
    """Of the content: of the files of a folder, the commit on the Hub, or what `datasets` has for its own cache."""
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
        raise _unread(source.path, key, error) from None


def _reader(table: Any, where: str, key: str) -> Callable[[Tell], Iterator[Raw]]:
    def read(tell: Tell) -> Iterator[Raw]:
        number = 0
        try:
            for row in _rows(table):
                number += 1
                tell(0)
                yield Raw(number, row)
        except Exception as error:
            if isinstance(error, BadRecord):
                raise
            raise _unread(f"{where}, after row {number}", key, error) from None

    return read


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    if not hasattr(table, "with_format") or not hasattr(table, "num_rows"):
        yield from table
        return
    for batch in table.with_format("arrow").iter(_ROWS):
        yield from batch.to_pylist()
