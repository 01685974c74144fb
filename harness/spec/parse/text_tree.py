# SPDX-License-Identifier: Apache-2.0
"""The layout of a YAML or JSON text: where every key and value begins and ends, as a tree of character offsets.

For edits in place. Knows no meaning of a value, and no rule about edits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.errors import UserError
from harness.spec.parse import hjson_parser, json_parser
from harness.spec.parse.source import KeyPath, is_json


class Node(NamedTuple):
    """A value: `kind` is `block`, `flow`, `list`, `scalar`, `empty` (no value in the text) or `alias` (its text is
    elsewhere).
    """

    kind: str
    start: int
    end: int
    entries: tuple[Entry, ...] = ()

    def find(self, name: str | int) -> Entry | None:
        """The entry of that name; None if there is none."""
        return next((entry for entry in self.entries if entry.name == name), None)


class Entry(NamedTuple):
    """A key with its value; the items of a list have a number and an empty key."""

    name: str | int
    key_start: int
    key_end: int
    value: Node


def build_tree(text: str, file: str) -> Node:
    """The layout of a text without syntax errors."""
    return _json_tree(text, file) if is_json(file, text) else _yaml_tree(text)


class _SpanReader(json_parser.JsonReader):
    spans: dict[KeyPath, tuple[int, int]]

    def parse_value(self, offset: int, path: KeyPath, key: Any) -> tuple[Any, int]:
        value, end = super().parse_value(offset, path, key)
        self.spans[path] = (offset, end)
        return value, end


class _HjsonSpanReader(_SpanReader, hjson_parser.HjsonReader):
    """The same for hjson's syntax."""


def _json_tree(text: str, file: str) -> Node:
    for kind in (_SpanReader, _HjsonSpanReader):
        reader = kind(text, file)
        reader.spans = {}
        try:
            value = reader.parse_document()
        except UserError:
            if kind is _HjsonSpanReader:
                raise
        else:
            break
    return _json_node(value, (), reader)


def _json_node(value: Any, path: KeyPath, reader: _SpanReader) -> Node:
    start, end = reader.spans[path]
    if isinstance(value, dict):
        return Node("flow", start, end, tuple(_json_entry(name, item, path, reader) for name, item in value.items()))
    if isinstance(value, list):
        items = [_json_node(item, (*path, index), reader) for index, item in enumerate(value)]
        return Node(
            "list", start, end, tuple(Entry(index, node.start, node.start, node) for index, node in enumerate(items))
        )
    return Node("scalar", start, end)


def _json_entry(name: str, value: Any, path: KeyPath, reader: _SpanReader) -> Entry:
    place = reader.spots[(*path, name)].key
    line, column, length = (place.line, place.column, place.length) if place else (1, 1, 0)
    start = reader.line_starts[line - 1] + column - 1
    return Entry(name, start, start + length, _json_node(value, (*path, name), reader))


def _yaml_tree(text: str) -> Node:
    from harness.spec.parse.yaml_parser import compose_nodes

    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return _yaml_node(compose_nodes(text), starts, text, -1)


def _yaml_node(node: Any, starts: list[int], text: str, after: int) -> Node:
    """`after` is the end of the key: a node before it is an alias' anchor."""
    start, end = (starts[mark.line] + mark.column for mark in (node.start_mark, node.end_mark))
    if start < after:
        return Node("alias", after, after)
    if node.id == "scalar":
        end = start + len(text[start:end].rstrip()) if node.style in ("|", ">") else end
        return Node("scalar" if end > start else "empty", start, end)
    pairs = node.value if node.id == "mapping" else [(None, item) for item in node.value]
    entries = []
    for number, (key, value) in enumerate(pairs):
        if key is None:
            item = _yaml_node(value, starts, text, start)
            entries.append(Entry(number, item.start, item.start, item))
            continue
        key_start, key_end = (starts[mark.line] + mark.column for mark in (key.start_mark, key.end_mark))
        entries.append(Entry(str(key.value), key_start, key_end, _yaml_node(value, starts, text, key_end)))
    if node.flow_style:
        return Node("flow" if node.id == "mapping" else "list", start, end, tuple(entries))
    end = max((max(entry.key_end, entry.value.end) for entry in entries), default=end)
    return Node("block" if node.id == "mapping" else "list", start, end, tuple(entries))
