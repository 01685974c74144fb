# SPDX-License-Identifier: Apache-2.0
"""Values in the syntax of YAML or JSON, and new keys at the place and with the indentation of a file.

Returns texts; `harness.spec.text_editor` checks that they mean the intended values.
"""

from __future__ import annotations

import json
from typing import Any

from harness.spec.parse.text_tree import Entry, Node

_PLAIN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-")


class ValueWriter:
    """Formats values and keys for one text."""

    def __init__(self, text: str, *, json: bool) -> None:
        self.text = text
        self.json = json

    def format_key(self, name: str) -> str:
        """A key with the quotes that it needs."""
        return json.dumps(name) if self.json else _quote_yaml(name)

    def format_value(self, value: Any, *, replaced_char: str = "") -> str:
        """A value on one line; `replaced_char` is the first character of the old value, for the same kind of quotes."""
        if self.json:
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, str) and replaced_char in ("'", '"'):
            return (
                json.dumps(value, ensure_ascii=False) if replaced_char == '"' else "'" + value.replace("'", "''") + "'"
            )
        return _format_yaml(value)

    def fill_value(self, entry: Entry, value: Any) -> str:
        """The text with a value for a key without one (`zero:`)."""
        colon = self.text.index(":", entry.key_end) + 1
        if not isinstance(value, dict) or not value:
            return f"{self.text[:colon]} {self.format_value(value)}{self.text[colon:]}"
        indent = entry.key_start - self.text.rfind("\n", 0, entry.key_start) - 1
        end = self._line_end(colon)
        return (
            self.text[:end] + "".join(f"\n{line}" for line in self._format_lines(value, indent + 2)) + self.text[end:]
        )

    def insert_key(self, section: Node, name: str, value: Any, *, is_root: bool = False) -> str:
        """The text with a new key at the end of a section that has keys, or is `{}`."""
        if section.kind == "flow":
            return self._insert_into_braces(section, name, value)
        indent = self._column(section.entries[0].key_start)
        end = self._line_end(section.end)
        needs_blank_line = is_root and isinstance(value, dict) and "\n\n" in self.text[section.start : section.end]
        lines = self._format_lines({name: value}, indent)
        return self.text[:end] + "\n" * needs_blank_line + "".join(f"\n{line}" for line in lines) + self.text[end:]

    def _insert_into_braces(self, section: Node, name: str, value: Any) -> str:
        if not section.entries:
            item = f"{self.format_key(name)}: {self.format_value(value)}"
            return f"{self.text[: section.start]}{{{item}}}{self.text[section.end :]}"
        last = section.entries[-1]
        offset = max(last.key_end, last.value.end)
        line = self.text.rfind("\n", 0, last.key_start) + 1
        indent = self.text[line : last.key_start]
        if line <= section.start or indent.strip():
            return f"{self.text[:offset]}, {self.format_key(name)}: {self.format_value(value)}{self.text[offset:]}"
        item = self._format_item(section, name, value, indent)
        if self.text[offset : self._line_end(offset)].lstrip().startswith(","):  # a comma after the last item
            end = self._line_end(offset)
            return f"{self.text[:end]}\n{indent}{item},{self.text[end:]}"
        end = (
            self._line_end(offset)
            if self.text[offset : self._line_end(offset)].strip().startswith(("#", "//"))
            else offset
        )
        return f"{self.text[:offset]},{self.text[offset:end]}\n{indent}{item}{self.text[end:]}"

    def _format_item(self, section: Node, name: str, value: Any, indent: str) -> str:
        """`key: value` in braces over several lines, a section of its own over several lines too (in JSON)."""
        if not self.json or not isinstance(value, dict):
            return f"{self.format_key(name)}: {self.format_value(value)}"
        outer = self.text[self.text.rfind("\n", 0, section.start) + 1 :]
        outer = outer[: len(outer) - len(outer.lstrip(" \t"))]
        step = indent.removeprefix(outer) or "  "
        body = json.dumps(value, ensure_ascii=False, indent=step).replace("\n", f"\n{indent}")
        return f"{self.format_key(name)}: {body}"

    def _format_lines(self, section: dict[str, Any], indent: int) -> list[str]:
        lines = []
        for name, value in section.items():
            if isinstance(value, dict) and value:
                lines += [f"{' ' * indent}{_quote_yaml(name)}:", *self._format_lines(value, indent + 2)]
            else:
                lines.append(f"{' ' * indent}{_quote_yaml(name)}: {_format_yaml(value)}")
        return lines

    def _line_end(self, offset: int) -> int:
        end = self.text.find("\n", offset)
        return len(self.text) if end < 0 else end

    def _column(self, offset: int) -> int:
        return offset - self.text.rfind("\n", 0, offset) - 1


def _format_yaml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quote_yaml(str(name))}: {_format_yaml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_format_yaml, value)) + "]"
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-").replace("e+", "e")
    return _quote_yaml(value) if isinstance(value, str) else json.dumps(value)


def _quote_yaml(text: str) -> str:
    """Without quotes where every YAML reader takes it for the same text."""
    from harness.spec.parse.yaml_parser import parse_scalar

    is_plain = bool(text) and text[0].isalpha() and set(text) <= _PLAIN_CHARACTERS and parse_scalar(text) == text
    return text if is_plain else json.dumps(text, ensure_ascii=False)
