# SPDX-License-Identifier: Apache-2.0
"""JSON into values with their places. (The standard library parses JSON without places; DeepSpeed's hjson does too.)

Strict by itself; `hjson_parser` has the syntax of DeepSpeed's reader, `json_dialects` the programs that refuse it.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, decoder
from typing import Any, NamedTuple

from harness import input_limits
from harness.errors import UserError
from harness.file_io import describe_json_error
from harness.findings import Finding, Fix, Label, Place
from harness.spec.parse.source import EntryPlace, KeyPath, Source, input_error, join_key, not_a_map_error

MAX_DEPTH = 200
MAX_DIGITS = 400
MAX_VALUES = 50_000
_WHITE_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LITERALS = {"true": True, "false": False, "null": None}
_scan_string: Any = vars(decoder)["scanstring"]  # the standard library's own, which the type stubs leave out
_HJSON_NOTE = (
    "DeepSpeed reads its configuration with hjson and may accept this; the Hugging Face Trainer and accelerate do not"
)


class NonStandardSyntax(NamedTuple):
    """One departure from strict JSON that hjson accepts: `kind` in the words of `json_dialects`, and for a text without
    quotes the value that it becomes.
    """

    kind: str
    place: Place
    path: KeyPath = ()
    text: str = ""


class JsonDocument(NamedTuple):
    """A JSON as its most tolerant reader has it: duplicate keys are findings, the last one counts."""

    source: Source
    duplicate_keys: tuple[Finding, ...] = ()
    nonstandard_syntax: tuple[NonStandardSyntax, ...] = ()


def parse(text: str, file: str) -> Source:
    """The file as a Source. Raises UserError at the first character that strict JSON does not allow."""
    reader = JsonReader(text, file)
    source = reader.to_source()
    if reader.findings:
        raise UserError(reader.findings)
    return source


class JsonReader:
    """Strict JSON, character by character."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.spots: dict[KeyPath, EntryPlace] = {}
        self.num_values = 0
        self.findings: list[Finding] = []
        self.line_starts = [0, *(m.end() for m in re.finditer("\n", text))]

    def to_source(self) -> Source:
        """The whole file. Raises UserError for wrong syntax and for a file without a map."""
        value = self.parse_document()
        if not isinstance(value, dict):
            raise not_a_map_error(value, Place(self.file, 1, 1), self.text)
        return Source(self.file, "json", self.text, value, self.spots)

    def parse_document(self) -> Any:
        """The one value that the file holds; None for an empty file."""
        start = self.skip_space(0)
        if start == len(self.text):
            return None
        value, end = self.parse_value(start, (), None)
        end = self.skip_space(end)
        if end != len(self.text):
            raise self.syntax_error(end, "something follows the end of the configuration")
        return value

    def parse_value(self, offset: int, path: KeyPath, key: Place | None) -> tuple[Any, int]:
        """The value that starts at `offset`, and its end."""
        if len(path) > MAX_DEPTH:
            raise self.syntax_error(offset, "the file is nested too deeply")
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            raise self.syntax_error(offset, f"the file has more than {MAX_VALUES:,} values")
        char = self.text[offset : offset + 1]
        value: Any
        if char == "{":
            value, end = self.parse_object(offset, path)
        elif char == "[":
            value, end = self.parse_array(offset, path)
        else:
            value, end = self.parse_scalar(offset, char, path)
        self.spots[path] = EntryPlace(key, self.place(offset, end))
        return value, end

    def parse_object(self, offset: int, path: KeyPath) -> tuple[dict[str, Any], int]:
        """A map; `offset` is its brace."""
        result: dict[str, Any] = {}
        offset = self.skip_space(offset + 1)
        while self.text[offset : offset + 1] != "}":
            if self.text[offset : offset + 1] != '"':
                raise self.syntax_error(offset, "a key in double quotes or `}` belongs here")
            name, end = self.parse_string(offset)
            place = self.place(offset, end)
            offset = self.skip_space(end)
            if self.text[offset : offset + 1] != ":":
                raise self.syntax_error(offset, f"`:` belongs after the key `{name}`")
            if name in result:
                self.report_duplicate_key((*path, name), place)
            result[name], offset = self.parse_value(self.skip_space(offset + 1), (*path, name), place)
            offset = self.skip_comma(offset, "}")
        return result, offset + 1

    def parse_array(self, offset: int, path: KeyPath) -> tuple[list[Any], int]:
        """A list; `offset` is its bracket."""
        result: list[Any] = []
        offset = self.skip_space(offset + 1)
        while self.text[offset : offset + 1] != "]":
            item, offset = self.parse_value(offset, (*path, len(result)), None)
            result.append(item)
            offset = self.skip_comma(offset, "]")
        return result, offset + 1

    def skip_comma(self, offset: int, closing: str) -> int:
        """The offset behind the comma, or of the closing bracket."""
        offset = self.skip_space(offset)
        char = self.text[offset : offset + 1]
        if char == closing:
            return offset
        if char != ",":
            raise self.syntax_error(offset, f"`,` or `{closing}` belongs here")
        after = self.skip_space(offset + 1)
        if self.text[after : after + 1] == closing:
            raise self.syntax_error(offset, f"a comma stands before `{closing}`")
        return after

    def parse_scalar(self, offset: int, char: str, path: KeyPath) -> tuple[Any, int]:  # noqa: ARG002
        """A text, a number, or one of the three words."""
        if char == '"':
            return self.parse_string(offset)
        for word, value in _LITERALS.items():
            if self.text.startswith(word, offset):
                return value, offset + len(word)
        match = _NUMBER.match(self.text, offset)
        if match is None:
            raise self.syntax_error(
                offset,
                "a value belongs here" if char in ("", ",", "}", "]", "#", "/") else self.describe_unexpected(offset),
            )
        if len(match[0]) > MAX_DIGITS:
            raise self.syntax_error(offset, f"a number of {len(match[0])} digits")
        is_whole = match[1] is None and match[2] is None
        return (int(match[0]) if is_whole else float(match[0])), match.end()

    def describe_unexpected(self, offset: int) -> str:
        """The text in place of a value."""
        match = re.match(r"[^\s,}\]]+", self.text[offset : offset + 60])
        word = match[0] if match else self.text[offset : offset + 1]
        literal = {"True": "true", "False": "false", "None": "null"}.get(word)
        return f"`{word}` is not a JSON value" + (f", `{literal}` is" if literal else "")

    def parse_string(self, offset: int) -> tuple[str, int]:
        """A text in double quotes."""
        try:
            text, end = _scan_string(self.text, offset + 1, True)
        except JSONDecodeError as error:
            raise self.syntax_error(error.pos, describe_json_error(error)) from None
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise self.syntax_error(offset, "half of a surrogate pair is no character")
        return str(text), int(end)

    def report_duplicate_key(self, path: KeyPath, place: Place) -> None:
        """Add a finding about a duplicate key."""
        if len(self.findings) == input_limits.FINDINGS:
            message = f"more than {input_limits.FINDINGS:,} keys are written twice"
            raise input_error("SP004", message, place, "keep each key once")
        first = self.spots[path].key
        self.findings.append(
            Finding(
                "SP004",
                "error",
                f"`{join_key(path)}` is written twice",
                key=join_key(path),
                place=place,
                label="again here",
                related=(Label(first, "first here"),) if first else (),
                notes=("DeepSpeed refuses this; the Hugging Face Trainer and accelerate silently keep the last one",),
                fix=Fix("keep one of them"),
            )
        )

    def skip_space(self, offset: int) -> int:
        """The offset behind white space."""
        match = _WHITE_SPACE.match(self.text, offset)
        return match.end() if match else offset

    def place(self, offset: int, end: int) -> Place:
        """The place of the characters from `offset` to `end`."""
        line, column = self.position(offset)
        return Place(self.file, line, column, end - offset if "\n" not in self.text[offset:end] else 0)

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1."""
        from bisect import bisect_right

        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def syntax_error(self, offset: int, message: str) -> UserError:
        """The exception for wrong syntax at `offset`."""
        line, column = self.position(min(offset, len(self.text)))
        return input_error(
            "SP002",
            f"not strict JSON: {message}",
            Place(self.file, line, column, 1),
            "write strict JSON",
            notes=(_HJSON_NOTE,),
        )
