# SPDX-License-Identifier: Apache-2.0
"""The files and data sets of a source of `data.train` or `data.eval`. Opens them; `ingestion.py` reads them."""

from __future__ import annotations

import ast
import glob
import hashlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

from harness.runtime.dataset import file_readers, json_readers
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


PYTHON_DOCS = "builtin:python-docs"
DOCSTRING_CHATS = "builtin:python-docstrings-chat"
_EXCLUDED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "ensurepip", "__pycache__"}
_MIN_CHARS = 20
_Named = tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]


def open_builtin(name: str, key: str) -> SourcePart:
    """The built-in source `name`. Raises UserError (MD118)."""
    if name == PYTHON_DOCS:
        body = "\0".join(f"{title}\0{topics[title]}" for title in sorted(topics)).encode()
        return SourcePart(name, "topic", len(body), hashlib.sha256(body).hexdigest(), _read_python_docs)
    if name == DOCSTRING_CHATS:
        size = sum(path.stat().st_size for path in _stdlib_modules())
        return SourcePart(name, "chat", size, f"{name} 1 of Python {sys.version}", _read_docstring_chats)
    raise user_error(
        "MD118",
        f"`{name}` is not a built-in text",
        key=key,
        fix=f"set `{key}: {PYTHON_DOCS}` or `{key}: {DOCSTRING_CHATS}`",
    )


def _read_python_docs(on_bytes_read: OnBytesRead) -> Iterator[RawRecord]:
    for number, title in enumerate(sorted(topics), start=1):
        on_bytes_read(len(topics[title]))
        yield RawRecord(number, topics[title])


def _stdlib_modules() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    found: list[Path] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _EXCLUDED and not name.startswith("_")]
        found += [Path(folder, n) for n in files if n.endswith(".py") and (n == "__init__.py" or not n.startswith("_"))]
    return sorted(found)


def _read_docstring_chats(on_bytes_read: OnBytesRead) -> Iterator[RawRecord]:
    """A chat for each public module, class and function, from its docstring. Modules are parsed, never imported: some
    have effects on import.
    """
    root, number = Path(sysconfig.get_path("stdlib")), 0
    for path in _stdlib_modules():
        on_bytes_read(path.stat().st_size)
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for question, docstring in _iter_docstrings(name, tree):
            number += 1
            yield RawRecord(number, {"messages": _make_turns(question, docstring)})


def _iter_docstrings(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    docstring = ast.get_docstring(tree)
    if docstring and len(docstring) >= _MIN_CHARS:
        yield f"What is the module `{module}` for?", docstring
    for name, node in _iter_public(module, tree):
        docstring = ast.get_docstring(node)
        if docstring and len(docstring) >= _MIN_CHARS:
            yield (f"What is `{name}`?" if isinstance(node, ast.ClassDef) else f"What does `{name}` do?"), docstring


def _iter_public(prefix: str, parent: ast.Module | ast.ClassDef) -> Iterator[_Named]:
    for node in parent.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield f"{prefix}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _iter_public(f"{prefix}.{node.name}", node)


def _make_turns(question: str, docstring: str) -> list[dict[str, str]]:
    first, _, rest = inspect.cleandoc(docstring).partition("\n\n")
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": first}]
    if rest.strip():
        turns += [{"role": "user", "content": "Tell me more."}, {"role": "assistant", "content": rest.strip()}]
    return turns
