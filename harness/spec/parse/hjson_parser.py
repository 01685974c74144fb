# SPDX-License-Identifier: Apache-2.0
"""The syntax that DeepSpeed's reader (hjson 3.1) takes and strict JSON does not: comments, trailing and missing commas,
single quotes, keys and texts without quotes, no outer braces. Each use is recorded with its place; nothing is checked.
"""

from __future__ import annotations

import re
from typing import Any

from harness.errors import UserError
from harness.findings import Place
from harness.spec.parse.json_parser import MAX_DIGITS, JsonDocument, JsonReader, NonStandardSyntax
from harness.spec.parse.source import KeyPath

_MAX_NONSTANDARD = 10_000
_WHITE_SPACE = re.compile(r"[ \t\n\r]*")
_COMMENT = re.compile(r"(?:#|//)[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?[\t ]*")
_STOP = re.compile(r"[\n,}\]#]|//|/\*|\Z")
_KEY = re.compile(r"([^\s:{}\[\],]+)[ \t\n\r]*(?=:)")
_LITERALS = {"true": True, "false": False, "null": None}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_PLAIN_CHARACTERS = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}


def parse(text: str, file: str, strict: UserError) -> JsonDocument:
    """The file as hjson reads it; `strict` is the error of strict JSON.

    Raises UserError where hjson fails too: `strict`, unless hjson got past it to an error of its own.
    """
    reader = HjsonReader(text, file)
    try:
        source = reader.to_source()
    except UserError as error:
        raise _error_to_report(strict, error, reader) from None
    return JsonDocument(source, tuple(reader.findings), tuple(reader.nonstandard_syntax))


def _error_to_report(strict: UserError, lenient: UserError, reader: HjsonReader) -> UserError:
    """Of two errors, the one that the user must fix first."""
    place, lenient_place = strict.findings[0].place, lenient.findings[0].place
    accepted = {
        (item.place.line, item.place.column) for item in reader.nonstandard_syntax if item.kind != "unquoted text"
    }
    is_accepted = place is not None and any(
        (place.line, column) in accepted for column in (place.column, place.column - 1, place.column + 1)
    )
    return lenient if (is_accepted or place == lenient_place) and lenient.findings[0].gate == "SP002" else strict


class HjsonReader(JsonReader):
    """hjson, character by character."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.nonstandard_syntax: list[NonStandardSyntax] = []
        self.known_places: set[tuple[str, int]] = set()

    def record_syntax(self, kind: str, offset: int, end: int, path: KeyPath = (), text: str = "") -> None:
        """Record non-standard syntax, once a place. Raises UserError where there is no end of it."""
        if (kind, offset) not in self.known_places:
            if len(self.known_places) == _MAX_NONSTANDARD:
                raise self.syntax_error(offset, f"more than {_MAX_NONSTANDARD:,} comments and other departures from it")
            self.known_places.add((kind, offset))
            self.nonstandard_syntax.append(NonStandardSyntax(kind, self.place(offset, end), path, text))

    def parse_document(self) -> Any:
        """The one value that the file holds; without braces it is a map."""
        start = self.skip_space(0)
        if start == len(self.text):
            return None
        if self.text[start] in "{[":
            value, end = self.parse_value(start, (), None)
        else:
            self.record_syntax("no outer braces", start, start + 1)
            value, end = self.parse_members(start, (), "")
            self.spots[()] = self.spots.get((), self.top_of_file())
        end = self.skip_space(end)
        if end != len(self.text):
            raise self.syntax_error(end, "something follows the end of the configuration")
        return value

    def top_of_file(self) -> Any:
        """The place of a map without braces: the top of the file."""
        from harness.spec.parse.source import EntryPlace

        return EntryPlace(None, Place(self.file, 1, 1))

    def parse_object(self, offset: int, path: KeyPath) -> tuple[dict[str, Any], int]:
        """A map; `offset` is its brace."""
        return self.parse_members(offset + 1, path, "}")

    def parse_members(self, offset: int, path: KeyPath, closing: str) -> tuple[dict[str, Any], int]:
        """The keys and values of a map, up to `closing` (at the top level that may be the end of the file)."""
        result: dict[str, Any] = {}
        offset = self.skip_space(offset)
        if closing and self.text[offset : offset + 1] == closing:
            return result, offset + 1
        while True:
            name, place, offset = self.parse_key(offset)
            offset = self.skip_space(offset)
            if self.text[offset : offset + 1] != ":":
                raise self.syntax_error(offset, f"`:` belongs after the key `{name}`")
            if name in result:
                self.report_duplicate_key((*path, name), place)
            result[name], offset = self.parse_value(self.skip_space(offset + 1), (*path, name), place)
            offset, is_end = self.skip_separator(offset, closing)
            if is_end:
                return result, offset

    def parse_array(self, offset: int, path: KeyPath) -> tuple[list[Any], int]:
        """A list; `offset` is its bracket."""
        result: list[Any] = []
        offset = self.skip_space(offset + 1)
        if self.text[offset : offset + 1] == "]":
            return result, offset + 1
        while True:
            item, offset = self.parse_value(offset, (*path, len(result)), None)
            result.append(item)
            offset, is_end = self.skip_separator(offset, "]")
            if is_end:
                return result, offset

    def skip_separator(self, offset: int, closing: str) -> tuple[int, bool]:
        """The offset behind the comma, if there is one; and whether `closing` followed."""
        offset = self.skip_space(offset)
        has_comma = self.text[offset : offset + 1] == ","
        after = self.skip_space(offset + 1) if has_comma else offset
        is_end = after == len(self.text) if not closing else self.text[after : after + 1] == closing
        if is_end:
            if has_comma:
                self.record_syntax("a comma before the closing bracket", offset, offset + 1)
            return after + len(closing), True
        if after == len(self.text):
            raise self.syntax_error(after, f"the file ends where `{closing}` belongs")
        if not has_comma:
            self.record_syntax("a missing comma", after, after + 1)
        return after, False

    def parse_key(self, offset: int) -> tuple[str, Place, int]:
        """A key, in quotes of either kind or in none."""
        if self.text[offset : offset + 1] in ('"', "'") and offset < len(self.text):
            name, end = self.parse_quoted(offset)
            if self.text[offset] == "'":
                self.record_syntax("single quotes", offset, end)
            return name, self.place(offset, end), end
        match = _KEY.match(self.text, offset)
        if match is None:
            raise self.syntax_error(offset, "a key or a closing bracket belongs here")
        end = offset + len(match[1])
        self.record_syntax("a key without quotes", offset, end)
        return match[1], self.place(offset, end), match.end()

    def parse_scalar(self, offset: int, char: str, path: KeyPath) -> tuple[Any, int]:
        """A text with or without quotes, a number, or one of the three words."""
        if char in ('"', "'") and char:
            if self.text.startswith("'''", offset):
                return self.parse_multiline(offset)
            text, end = self.parse_quoted(offset)
            if char == "'":
                self.record_syntax("single quotes", offset, end)
            return text, end
        if char in tuple("{}[],:") or not char:
            raise self.syntax_error(offset, "a value belongs here")
        return self.parse_unquoted(offset, path)

    def parse_unquoted(self, offset: int, path: KeyPath) -> tuple[Any, int]:
        """A number or a word as far as the next bracket, comma or comment; anything else is a text up to the end of
        the line.
        """
        for stop in _STOP.finditer(self.text, offset):
            end = stop.start()
            word = self.text[offset:end].strip()
            if word in _LITERALS:
                return _LITERALS[word], end
            number = _NUMBER.match(self.text, offset)
            if number is not None and number.end() == end:
                return self.parse_number(offset, number), end
            if end == len(self.text) or self.text[end] == "\n":
                self.record_syntax("unquoted text", offset, offset + len(word), path, word)
                return word, end
        raise self.syntax_error(offset, "a value belongs here")

    def parse_number(self, offset: int, match: re.Match[str]) -> Any:
        """The number of a match."""
        if len(match[0]) > MAX_DIGITS:
            raise self.syntax_error(offset, f"a number of {len(match[0])} digits")
        is_whole = match[2] is None and match[3] is None
        return int(match[1]) if is_whole else float(match[0])

    def parse_quoted(self, offset: int) -> tuple[str, int]:
        """A text in quotes of either kind; no control characters, hjson's escapes."""
        quote, parts, end = self.text[offset], [], offset + 1
        while True:
            run = _PLAIN_CHARACTERS[quote].match(self.text, end)
            if run is not None:
                parts.append(run[0])
                end = run.end()
            char = self.text[end : end + 1]
            if char == quote:
                break
            if char != "\\":
                raise self.syntax_error(
                    end if char else offset, "control character in a text" if char else "a text without end"
                )
            escape = self.text[end + 1 : end + 2]
            if escape == "u" and re.fullmatch("[0-9a-fA-F]{4}", self.text[end + 2 : end + 6]):
                parts.append(chr(int(self.text[end + 2 : end + 6], 16)))
                end += 6
            elif escape in _ESCAPES:
                parts.append(_ESCAPES[escape])
                end += 2
            else:
                raise self.syntax_error(end, "an escape that JSON does not know")
        text = "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if "\ufffd" in text and "\ufffd" not in "".join(parts):
            raise self.syntax_error(offset, "half of a surrogate pair is no character")
        return text, end + 1

    def parse_multiline(self, offset: int) -> tuple[str, int]:
        """A text of several lines between three single quotes, less its indentation."""
        end = self.text.find("'''", offset + 3)
        if end < 0:
            raise self.syntax_error(offset, "a text without end")
        self.record_syntax("a text of several lines", offset, end + 3)
        indent = offset - (self.text.rfind("\n", 0, offset) + 1)
        first, *rest = self.text[offset + 3 : end].split("\n")
        lines = [
            *([first.lstrip(" \t")] if first.strip(" \t") or not rest else []),
            *(_dedent(line, indent) for line in rest),
        ]
        return "\n".join(lines).removesuffix("\n"), end + 3

    def skip_space(self, offset: int) -> int:
        """The offset behind white space and comments."""
        while True:
            match = _WHITE_SPACE.match(self.text, offset)
            offset = match.end() if match else offset
            comment = _COMMENT.match(self.text, offset)
            if comment is None:
                if self.text.startswith("/*", offset):
                    raise self.syntax_error(offset, "a comment without end")
                return offset
            self.record_syntax("a comment", offset, comment.end())
            offset = comment.end()


def _dedent(line: str, columns: int) -> str:
    """The line without its first `columns` blanks."""
    blanks = len(line) - len(line.lstrip(" \t"))
    return line[min(blanks, columns) :]
