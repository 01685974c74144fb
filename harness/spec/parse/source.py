# SPDX-License-Identifier: Apache-2.0
"""A YAML or JSON file as plain values with the place of each key and value.

Knows syntax only: no key has a meaning here.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness import input_limits
from harness.errors import ExitCode, UserError
from harness.file_io import read_regular
from harness.findings import Finding, Fix, Place

KeyPath = tuple[str | int, ...]
MAX_BYTES = input_limits.CONFIGURATION
BOM = b"\xef\xbb\xbf"
"""The byte order mark that some editors put in front of UTF-8; `decode` drops it."""


class EntryPlace(NamedTuple):
    """The places of a key and its value; list items and the root have no key."""

    key: Place | None
    value: Place


class Source(NamedTuple):
    """One parsed file. `origin` leads from a run spec's path to the user's own, where the file is not a run spec."""

    file: str
    syntax: Literal["yaml", "json"]
    text: str
    data: dict[str, Any]
    spots: Mapping[KeyPath, EntryPlace] = {}
    origin: Mapping[KeyPath, KeyPath] = {}
    extra_lines: Mapping[str, Sequence[str]] = {}

    def user_path(self, path: KeyPath) -> KeyPath:
        """The path as the user writes it: for a DeepSpeed JSON, that of its own key."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origin:
                return self.origin[path[:end]] + path[end:]
        return path

    def user_key(self, key: str) -> str:
        """`zero.stage`, or `zero_optimization.stage` where the user wrote a DeepSpeed JSON."""
        return join_key(self.user_path(split_key(key)))

    def place(self, key: str | KeyPath, *, of_key: bool = False) -> Place:
        """The place of the value of `key` (of its key, if the value takes several lines); where it is not written, of
        the nearest section that is; at last the top of the file, with length 0.
        """
        path = self.user_path(split_key(key) if isinstance(key, str) else key)
        for end in range(len(path), -1, -1):
            spot = self.spots.get(path[:end])
            if spot is not None:
                is_value = end == len(path) and not of_key and spot.value.length > 0
                return spot.value if is_value or spot.key is None else spot.key
        return Place(self.file, 1, 1)

    def has_key(self, key: str) -> bool:
        """Is the key itself written in the file (or on the command line)?"""
        return self.user_path(split_key(key)) in self.spots

    def lines(self, file: str) -> Sequence[str]:
        """The lines of `file`, to quote from; none for another file than those that were read."""
        return _split_lines(self.text) if file == self.file else self.extra_lines.get(file, ())


@lru_cache(maxsize=2)
def _split_lines(text: str) -> tuple[str, ...]:
    """The lines of a text, split once for all findings."""
    return tuple(text.split("\n"))


def split_key(key: str) -> KeyPath:
    """`a.b.0` as a path; digits are list positions."""
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def join_key(path: KeyPath) -> str:
    """The inverse of `split_key`."""
    return ".".join(str(part) for part in path)


def read_text(file: str) -> str:
    """The text of a file. Raises UserError for a missing file and for one without text."""
    return decode(read_bytes(file), file)


def value_at(data: Any, path: KeyPath) -> Any:
    """The value at a path of plain values; None if there is none."""
    for name in path:
        if isinstance(data, dict):
            data = data.get(name)
        elif isinstance(data, list) and isinstance(name, int) and name < len(data):
            data = data[name]
        else:
            return None
    return data


def copy_values(value: Any) -> Any:
    """A copy of plain values: maps and lists at every level."""
    if isinstance(value, dict):
        return {name: copy_values(item) for name, item in value.items()}
    return [copy_values(item) for item in value] if isinstance(value, list) else value


def is_json(file: str, text: str) -> bool:
    """Is it JSON by its name, or by its first character where the name does not tell?"""
    suffix = Path(file).suffix.lower()
    if suffix in (".yaml", ".yml"):
        return False
    return suffix == ".json" or text.lstrip()[:1] == "{"


def read_bytes(file: str) -> bytes:
    """The bytes of a file; `-` is standard input. Raises UserError for a missing file and for one that is too large."""
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise _too_large_error(file)
            return content
        path = Path(file)
        if path.is_fifo():
            raise input_error(
                "SP001", f"`{file}` is a pipe, not a file", Place(file, 1, 1), "give it as `-`", ExitCode.USAGE
            )
        if path.is_dir():
            raise input_error(
                "SP001",
                f"`{file}` is a directory, not a file",
                Place(file, 1, 1),
                "name the file inside it",
                ExitCode.USAGE,
            )
        return read_regular(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.EFBIG:
            raise _too_large_error(file) from None
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise input_error(
            "SP001", f"`{file}` cannot be read: {reason}", Place(file, 1, 1), "check the path", ExitCode.USAGE
        ) from None


def _too_large_error(file: str) -> UserError:
    return input_error(
        "SP001", f"`{file}` is larger than {MAX_BYTES:,} bytes", Place(file, 1, 1), "this is not a run spec"
    )


_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def decode(content: bytes, file: str) -> str:
    """UTF-8 text, with or without a byte order mark. Raises UserError at the first byte that is not text."""
    try:
        text, wrong_byte = content.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        text, wrong_byte = content[: error.start].decode("utf-8-sig", "replace"), content[error.start]
    control = _CONTROL_CHARACTER.search(text)
    bad = control.start() if control else None
    if bad is None and wrong_byte is None:
        return text.replace("\r\n", "\n").replace("\r", "\n")
    end = len(text) if bad is None else bad
    place = Place(file, text.count("\n", 0, end) + 1, end - (text.rfind("\n", 0, end) + 1) + 1)
    if bad is not None:
        raise input_error(
            "SP001", f"control character 0x{ord(text[bad]):02x}: this is not a text file", place, "name a text file"
        )
    raise input_error("SP001", f"byte 0x{wrong_byte:02x} is not UTF-8 text", place, "save the file as UTF-8")


def input_error(
    gate: str, message: str, place: Place, title: str, code: ExitCode = ExitCode.FINDINGS, notes: tuple[str, ...] = ()
) -> UserError:
    """The exception for input that is no map of keys."""
    return UserError([Finding(gate, "error", message, place=place, notes=notes, fix=Fix(title))], code)


def not_a_map_error(value: Any, place: Place, text: str) -> UserError:
    """The exception for a file that is empty, a list or a single value."""
    json = is_json(place.file, text)
    if value is None and not text.strip():
        start = 'start with `{"train_batch_size": ...}`' if json else "start with `model:`, `data:` and `train:`"
        return input_error("SP003", "the file is empty", place, start)
    kinds = {list: "a list", str: "a text", type(None): "`null`" if json else "nothing but comments"}
    kind = kinds.get(type(value), "a single value")
    title = 'write `{"key": value}`' if json else "write `key: value` lines"
    return input_error("SP003", f"the file holds {kind} where a map of keys belongs", place, title)
