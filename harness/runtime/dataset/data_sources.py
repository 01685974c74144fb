# SPDX-License-Identifier: Apache-2.0
"""The files and data sets of a source of `data.train` or `data.eval`. Opens them; `ingestion.py` reads them."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.runtime.dataset import file_readers, json_readers
from harness.runtime.dataset.builtin_sources import open_builtin
from harness.runtime.dataset.hub import load_hub_dataset
from harness.runtime.dataset.record import OnBytesRead, RawRecord, SourcePart
from harness.runtime.user_errors import user_error
from harness.spec.sections.data_spec import DataSource

Reader = Callable[[Path, str], Callable[[OnBytesRead], Iterator[RawRecord]]]
TEXT_SUFFIXES = {".txt", ".md", ".rst"}
READERS: dict[str, tuple[Reader, str]] = {
    **dict.fromkeys(TEXT_SUFFIXES, (file_readers.text_reader, "")),
    ".jsonl": (json_readers.json_lines_reader, "line"),
    ".json": (json_readers.json_reader, "record"),
    ".csv": (file_readers.csv_reader, "line"),
    ".parquet": (file_readers.columnar_reader, "row"),
    ".arrow": (file_readers.columnar_reader, "row"),
}
"""By the suffix of a file's name: its reader, and the unit that the reader counts."""


def open_source(source: DataSource, key: str, *, streaming: bool, hash_file: Callable[[Path], str]) -> list[SourcePart]:
    """The parts of one source, files in the order of their names. `hash_file` gives a file's identity.

    Raises UserError (MD11x) that names a missing or unreadable file.
    """
    name = source.path
    if name.startswith("builtin:"):
        return [open_builtin(name, key)]
    is_file_pattern = Path(name).suffix.lower() in READERS or glob.has_magic(name)
    if not is_file_pattern and (not Path(name).exists() or Path(name).is_dir()):
        return [load_hub_dataset(source, key, streaming=streaming, hash_file=hash_file)]
    return [_open_file(path, key, hash_file) for path in _match_files(name, key)]


def _match_files(pattern: str, key: str) -> list[Path]:
    # Path.glob refuses absolute patterns.
    matches = glob.glob(pattern, recursive=True) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
    paths = sorted(Path(p) for p in matches if Path(p).is_file())
    if not paths:
        reason = "is a directory" if Path(pattern).is_dir() else "does not exist"
        reason = "matches no file" if glob.has_magic(pattern) else reason
        raise user_error("MD111", f"`{pattern}` {reason}", key=key, fix=f"name files in `{key}`, such as `texts/*.txt`")
    return paths


def _open_file(path: Path, key: str, hash_file: Callable[[Path], str]) -> SourcePart:
    reader_and_unit = READERS.get(path.suffix.lower())
    if reader_and_unit is None:
        suffixes = ", ".join(sorted(READERS))
        raise user_error("MD118", f"`{path}` has an unknown extension, should be one of {suffixes}", key=key)
    reader, unit = reader_and_unit
    try:
        size, identity = path.stat().st_size, hash_file(path)
    except OSError as error:
        raise user_error(
            "MD111", f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}", key=key
        ) from None
    if not size and path.suffix.lower() not in TEXT_SUFFIXES:
        raise user_error("MD114", f"`{path}` is empty", key=key)
    return SourcePart(str(path), unit, size, f"{path.suffix.lower()} {identity}", reader(path, key))
