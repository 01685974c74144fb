"""Where text comes from: the Python reference, local files or a data set; always documents, read one by one.

No tokens here, and no split into training and held-out parts.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from harness.runtime.refusals import refusal

PYTHON_DOCS = "builtin:python-docs"
_PLAIN = {".txt", ".md", ".rst"}
_TABLES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True, slots=True)
class Documents:
    """A sequence of texts that are fetched when they are asked for. `label(i)` names document i for a message."""

    count: int
    fetch: Callable[[int], str]
    label: Callable[[int], str]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        return (self.fetch(i) for i in range(self.count))


def open_source(names: str | Sequence[str], column: str, key: str) -> Documents:
    """The documents of `data.train` or `data.eval` (`key` says which, for messages).

    A plain file (.txt, .md, .rst) is a document; so is a row of a table or of a Hub data set. Raises Refused (MD11x)
    that names the file or the column.
    """
    parts = [_open_one(name, column, key) for name in ([names] if isinstance(names, str) else names)]
    return _join(parts)


def _open_one(name: str, column: str, key: str) -> Documents:
    if name.startswith("builtin:"):
        return _builtin(name, key)
    suffix = Path(name).suffix.lower()
    if suffix in _PLAIN or suffix in _TABLES or glob.has_magic(name) or Path(name).exists():
        return _files(name, column, key)
    return _dataset(name, column, key, name=name)


def _builtin(name: str, key: str) -> Documents:
    if name != PYTHON_DOCS:
        raise refusal("MD118", f"`{name}` is not a built-in text", key=key, fix=f"set `{key}: {PYTHON_DOCS}`")
    titles = sorted(topics)
    return Documents(len(titles), lambda i: topics[titles[i]], lambda i: f"{PYTHON_DOCS}, topic `{titles[i]}`")


def _files(pattern: str, column: str, key: str) -> Documents:
    # Path.glob refuses absolute patterns.
    matches = glob.glob(pattern, recursive=True) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
    paths = sorted(Path(p) for p in matches if Path(p).is_file())
    if not paths:
        what = (
            "is a directory"
            if Path(pattern).is_dir()
            else "matches no file"
            if glob.has_magic(pattern)
            else "does not exist"
        )
        raise refusal("MD111", f"`{pattern}` {what}", key=key, fix=f"name files in `{key}`, such as `texts/*.txt`")
    unknown = [p for p in paths if p.suffix.lower() not in _PLAIN and p.suffix.lower() not in _TABLES]
    if unknown:
        known = ", ".join(sorted(_PLAIN | set(_TABLES)))
        raise refusal(
            "MD118", f"`{unknown[0]}` has no ending that says how to read it, should be one of {known}", key=key
        )
    plain = [p for p in paths if p.suffix.lower() in _PLAIN]
    tables = [p for p in paths if p.suffix.lower() in _TABLES]
    parts = [Documents(len(plain), lambda i: _read_plain(plain[i], key), lambda i: f"`{plain[i]}`")] if plain else []
    return _join([*parts, *(_dataset(str(p), column, key, kind=_TABLES[p.suffix.lower()]) for p in tables)])


def _read_plain(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise refusal(
            "MD113",
            f"`{path}` is not UTF-8: byte {error.start} cannot be decoded",
            key=key,
            fix="convert the file to UTF-8, or leave it out",
        ) from None
    except OSError as error:
        raise refusal("MD111", f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}", key=key) from None


def _dataset(where: str, column: str, key: str, *, kind: str = "", name: str = "") -> Documents:
    """One table file (`kind` is the reader's name) or a data set of the Hub (`name`), through `datasets`."""
    if kind and not Path(where).stat().st_size:
        raise refusal("MD114", f"`{where}` is empty", key=key)
    import datasets  # takes a second, and only tables need it

    datasets.disable_progress_bars()
    try:
        table: Any = (
            datasets.load_dataset(kind, data_files=where, split="train")
            if kind
            else datasets.load_dataset(name, split="train")
        )
    except Exception as error:  # `datasets` raises what its readers raise: pyarrow's, pandas', the Hub client's
        cause = error.__cause__ or error
        note = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise refusal("MD116", f"`{where}` cannot be read", key=key, notes=(note,)) from None
    if column not in table.column_names:
        have = ", ".join(f"`{c}`" for c in table.column_names)
        raise refusal(
            "MD112",
            f"`{where}` has no column `{column}`, it has {have}",
            key="data.text_column",
            fix="set `data.text_column` to one of them",
        )
    return Documents(
        len(table), lambda i: _cell(table[i][column], where, column, i), lambda i: f"`{where}`, row {i + 1}"
    )


def _cell(value: Any, where: str, column: str, row: int) -> str:
    if not isinstance(value, str):
        got = "empty" if value is None else f"{type(value).__name__} `{value}`"
        raise refusal(
            "MD112", f"`{where}`, row {row + 1}: column `{column}` is {got}, should be text", key="data.text_column"
        )
    return value


def _join(parts: list[Documents]) -> Documents:
    if len(parts) == 1:
        return parts[0]
    ends: list[int] = []
    for part in parts:
        ends.append((ends[-1] if ends else 0) + len(part))

    def find(i: int) -> tuple[Documents, int]:
        which = next(n for n, end in enumerate(ends) if i < end)
        return parts[which], i - (ends[which] - len(parts[which]))

    def fetch(i: int) -> str:
        part, k = find(i)
        return part.fetch(k)

    def label(i: int) -> str:
        part, k = find(i)
        return part.label(k)

    return Documents(ends[-1] if ends else 0, fetch, label)
