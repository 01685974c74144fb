"""Which files and data sets a source of `data.train` or `data.eval` means. They are opened here, and read elsewhere."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.runtime.corpus import files
from harness.runtime.corpus.builtins import builtin
from harness.runtime.corpus.hub import dataset
from harness.runtime.corpus.record import Part, Raw
from harness.runtime.refusals import refusal
from harness.spec.sections.data import DataSource

Reader = Callable[[Path, str], Callable[[Callable[[int], None]], Iterator[Raw]]]
PLAIN = {".txt", ".md", ".rst"}
READERS: dict[str, tuple[Reader, str]] = {
    **dict.fromkeys(PLAIN, (files.plain, "")),
    ".jsonl": (files.json_lines, "line"),
    ".json": (files.json_document, "record"),
    ".csv": (files.comma_separated, "line"),
    ".parquet": (files.columnar, "row"),
    ".arrow": (files.columnar, "row"),
}
"""By the ending of a file's name: its reader, and what that counts."""


def open_parts(source: DataSource, key: str, *, streaming: bool, hash_file: Callable[[Path], str]) -> list[Part]:
    """The parts of one source, files in the order of their names. `hash_file` gives a file's identity.

    Raises Refused (MD11x) that names what is not there or cannot be read.
    """
    name = source.path
    if name.startswith("builtin:"):
        return [builtin(name, key)]
    known = Path(name).suffix.lower() in READERS or glob.has_magic(name)
    if not known and (not Path(name).exists() or Path(name).is_dir()):
        return [dataset(source, key, streaming=streaming, hash_file=hash_file)]
    return [_part(path, key, hash_file) for path in _matching(name, key)]


def _matching(pattern: str, key: str) -> list[Path]:
    # Path.glob refuses absolute patterns.
    matches = glob.glob(pattern, recursive=True) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
    paths = sorted(Path(p) for p in matches if Path(p).is_file())
    if not paths:
        what = "is a directory" if Path(pattern).is_dir() else "does not exist"
        what = "matches no file" if glob.has_magic(pattern) else what
        raise refusal("MD111", f"`{pattern}` {what}", key=key, fix=f"name files in `{key}`, such as `texts/*.txt`")
    return paths


def _part(path: Path, key: str, hash_file: Callable[[Path], str]) -> Part:
    found = READERS.get(path.suffix.lower())
    if found is None:
        known = ", ".join(sorted(READERS))
        raise refusal("MD118", f"`{path}` has no ending that says how to read it, should be one of {known}", key=key)
    reader, unit = found
    try:
        size, identity = path.stat().st_size, hash_file(path)
    except OSError as error:
        raise refusal("MD111", f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}", key=key) from None
    if not size and path.suffix.lower() not in PLAIN:
        raise refusal("MD114", f"`{path}` is empty", key=key)
    return Part(str(path), unit, size, f"{path.suffix.lower()} {identity}", reader(path, key))
