# SPDX-License-Identifier: Apache-2.0
"""Readers of JSON and JSON Lines files, in constant memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

from harness.file_io import describe_json_error
from harness.runtime.dataset.record import (
    MAX_RECORD_BYTES,
    BadRecord,
    OnBytesRead,
    RawRecord,
    has_undecoded_bytes,
    report_os_errors,
)
from harness.runtime.user_errors import user_error

_CHUNK = 4 << 20
_BLANK = b" \t\r\n"
_SPACE = re.compile(r"[ \t\r\n]*")


def json_lines_reader(path: Path, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """One undecoded line per record; blank lines are skipped."""

    def read(on_bytes_read: OnBytesRead) -> Iterator[RawRecord]:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_RECORD_BYTES):
                number += 1
                on_bytes_read(len(line))
                if len(line) == MAX_RECORD_BYTES and not line.endswith(b"\n"):
                    while rest := file.readline(MAX_RECORD_BYTES):
                        on_bytes_read(len(rest))
                        if rest.endswith(b"\n"):
                            break
                    reason = f"the line has more than {MAX_RECORD_BYTES >> 20} MiB"
                    yield RawRecord(number, BadRecord("bad-json", reason))
                elif line.strip(_BLANK):
                    yield RawRecord(number, line)

    return report_os_errors(read, path, key)


def parse_json_line(line: bytes) -> dict[str, Any]:
    """The object in a line of JSON Lines. Raises BadRecord."""
    try:
        value = json.loads(line.rstrip(_BLANK).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadRecord("bad-utf-8", f"is not UTF-8: byte {error.start} of the line cannot be decoded") from None
    except json.JSONDecodeError as error:
        raise BadRecord("bad-json", f"is not JSON: {describe_json_error(error)} at column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else "a number of too many digits"
        raise BadRecord("bad-json", f"is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise BadRecord("wrong-type", f"is {json_type_name(value)}, should be an object")
    return value


def json_type_name(value: object) -> str:
    """The JSON type of a value, for a message."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def json_reader(path: Path, key: str) -> Callable[[OnBytesRead], Iterator[RawRecord]]:
    """A list of objects, one at a time; or objects one after the other, such as JSON Lines under this suffix."""

    def read(on_bytes_read: OnBytesRead) -> Iterator[RawRecord]:
        with path.open("rb") as file:
            head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)[:1]
        if head != b"[":
            yield from json_lines_reader(path, key)(on_bytes_read)
            return
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as text:
            yield from _iter_elements(text, path, key, on_bytes_read)

    return report_os_errors(read, path, key)


def _skip_space(buffer: str, at: int) -> int:
    match = _SPACE.match(buffer, at)
    return at if match is None else match.end()


def _iter_elements(file: TextIO, path: Path, key: str, on_bytes_read: OnBytesRead) -> Iterator[RawRecord]:
    """The elements of a JSON list. A syntax error leaves no way to find the next element: it always raises."""
    decoder, number = json.JSONDecoder(), 0
    buffer = file.read(_CHUNK)
    on_bytes_read(len(buffer))
    at = _skip_space(buffer, 0) + 1
    while True:
        element = _next_element(decoder, buffer, at, first=not number)
        if element == "end":
            return
        if element is not None:
            number += 1
            value, at = element
            yield RawRecord(number, _check_element(value))
            continue
        buffer = buffer[at:]
        at = 0
        chunk = file.read(max(_CHUNK, len(buffer)))
        on_bytes_read(len(chunk))
        if not chunk or len(buffer) > MAX_RECORD_BYTES:
            reason = f"cannot be read after element {number}: the list is not closed, or what follows is not JSON"
            raise user_error(
                "MD120", f"`{path}` {reason}", key=key, fix="fix the file, or write it as JSON Lines (.jsonl)"
            )
        buffer += chunk


def _next_element(
    decoder: json.JSONDecoder, buffer: str, at: int, *, first: bool
) -> tuple[Any, int] | Literal["end"] | None:
    """The element behind `at` and where it ends; None when the buffer does not hold all of it."""
    at = _skip_space(buffer, at)
    if buffer[at : at + 1] == "]":
        return "end"
    if not first:
        if buffer[at : at + 1] != ",":
            return None
        at = _skip_space(buffer, at + 1)
    try:
        return decoder.raw_decode(buffer, at)
    except (ValueError, RecursionError):  # also a number of too many digits
        return None


def _check_element(value: Any) -> dict[str, Any] | BadRecord:
    if not isinstance(value, dict):
        return BadRecord("wrong-type", f"is {json_type_name(value)}, should be an object")
    try:
        return BadRecord("bad-utf-8", "is not UTF-8") if has_undecoded_bytes(value) else value
    except RecursionError:
        return BadRecord("bad-json", "is nested too deeply")
