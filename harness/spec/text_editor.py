# SPDX-License-Identifier: Apache-2.0
"""Edits of single values in the text of a YAML or JSON file; comments, order and layout stay.

The result is parsed again and compared with the intended values: a layout that the editor does not understand is
refused and never damaged. Reads and writes no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import UserError
from harness.findings import Fix
from harness.spec.parse.source import KeyPath, Source, copy_values, is_json, join_key, split_key, value_at
from harness.spec.parse.source_parser import parse, parse_lenient
from harness.spec.parse.text_tree import Entry, Node, build_tree
from harness.spec.parse.value_writer import ValueWriter


class EditError(Exception):
    """The text cannot be edited without risk; the message says why, in the words of a finding's note."""


def edits_of_fix(fix: Fix, source: Source) -> dict[KeyPath, Any]:
    """The edits of a fix, under the user's own keys. Raises EditError for keys of the command line."""
    sets: dict[KeyPath, Any] = {}
    for key, value in fix.sets.items():
        path = source.user_path(split_key(key))
        if source.origin and path[0] == "deepspeed" and "deepspeed" not in source.data:
            path = path[1:]  # a key without a field of its own stands at the top of a DeepSpeed JSON
        spot = source.spots.get(path)
        if spot is not None and spot.value.file == "--set":
            raise EditError(f"`{join_key(path)}` is set on the command line")
        sets[path] = list(value) if isinstance(value, tuple) else value
    return sets


def apply_edits(text: str, file: str, sets: Mapping[KeyPath, Any]) -> str:
    """The text with each path set to its value (None: removed, with the section that it leaves empty).

    A removed key whose value appears under another name of its section is renamed in place. Only the extension of
    `file` matters. Raises EditError.
    """
    try:
        values = _parse_values(text, file)
    except UserError as error:
        raise EditError(error.findings[0].message) from None
    expected = copy_values(values)
    for path, value in sorted(sets.items(), key=lambda item: item[1] is None):
        _set_value(expected, path, value)
    if expected == values:
        raise EditError("nothing would change")
    if not expected:
        raise EditError("the file would be empty")
    from yaml import YAMLError

    edited = text
    try:
        for path, value in _edit_steps(values, sets):
            edited = _apply_step(edited, file, path, value)
        is_expected = _parse_values(edited, file) == expected
    except (UserError, YAMLError, LookupError, ValueError):
        is_expected = False  # such as a line break that only YAML knows
    if not is_expected:
        raise EditError("the layout of the file does not allow it")
    return edited


class _KeyRename(str):
    """The new name of a key, among values to set."""


def _edit_steps(values: dict[str, Any], sets: Mapping[KeyPath, Any]) -> list[tuple[KeyPath, Any]]:
    removed = [path for path, value in sets.items() if value is None and value_at(values, path) is not None]
    steps: dict[KeyPath, Any] = {}
    renamed = set()
    for path, value in sets.items():
        twin = next((other for other in removed if other[:-1] == path[:-1] and value_at(values, other) == value), None)
        if value is not None and twin is not None and twin not in renamed and value_at(values, path) is None:
            steps[twin] = _KeyRename(path[-1])
            renamed.add(twin)
        elif value is not None:
            steps[path] = value
    removals = [(path, None) for path in removed if path not in renamed]
    return [*steps.items(), *removals]


def _apply_step(text: str, file: str, path: KeyPath, value: Any) -> str:
    root = build_tree(text, file)
    writer = ValueWriter(text, json=is_json(file, text))
    if value is None:
        return _remove_key(text, root, path)
    parent, rest = _innermost_section(root, path)
    entry = parent.find(rest[0])
    if isinstance(value, _KeyRename):
        if entry is None or len(rest) > 1:
            raise EditError(f"`{join_key(path)}` is not written in the file")
        return text[: entry.key_start] + writer.format_key(str(value)) + text[entry.key_end :]
    for name in reversed(rest[1:]):
        value = {str(name): value}
    if entry is not None:
        return _replace_value(text, entry, value, writer)
    if not isinstance(rest[0], str) or parent.kind not in ("block", "flow"):
        raise EditError(f"`{join_key(path)}` has no place in the file")
    return writer.insert_key(parent, rest[0], value, is_root=parent is root)


def _innermost_section(root: Node, path: KeyPath) -> tuple[Node, KeyPath]:
    """The innermost section of the path in the text, and the rest of the path."""
    node = root
    for depth, name in enumerate(path[:-1]):
        entry = node.find(name)
        if entry is None or entry.value.kind == "empty":
            return node, path[depth:]
        node = entry.value
        if node.kind in ("alias", "scalar"):
            raise EditError(f"`{join_key(path[: depth + 1])}` is no section of the file")
    return node, path[-1:]


def _replace_value(text: str, entry: Entry, value: Any, writer: ValueWriter) -> str:
    node = entry.value
    if node.kind == "empty":
        return writer.fill_value(entry, value)
    has_anchor = text[node.start] in "&!*" and not writer.json
    is_multiline = "\n" in text[node.start : node.end] and text[node.start] not in "[{"  # brackets can be replaced
    if node.kind in ("alias", "block") or has_anchor or text[node.start] in "|>" or is_multiline:
        raise EditError(f"`{entry.name}` is written over several lines, or through an anchor")
    return text[: node.start] + writer.format_value(value, replaced_char=text[node.start]) + text[node.end :]


def _remove_key(text: str, root: Node, path: KeyPath) -> str:
    parent, entry = root, None
    for name in path:
        parent, entry = (entry.value if entry else root), None
        entry = parent.find(name)
        if entry is None:
            return text
    if entry is None or not isinstance(entry.name, str):
        raise EditError(f"`{join_key(path)}` is an item of a list")
    if len(parent.entries) == 1:
        return _remove_key(text, root, path[:-1])
    return _remove_lines(text, entry) if parent.kind == "block" else _remove_item(text, parent, entry)


def _remove_lines(text: str, entry: Entry) -> str:
    start = text.rfind("\n", 0, entry.key_start) + 1
    if text[start : entry.key_start].strip():
        raise EditError(f"`{entry.name}` does not begin its line")
    end = text.find("\n", max(entry.key_end, entry.value.end))
    return text[:start] + (text[end + 1 :] if end >= 0 else "")


def _remove_item(text: str, parent: Node, entry: Entry) -> str:
    """An item of braces, with the comma behind it, or the one before it for the last item."""
    index = parent.entries.index(entry)
    start, end = entry.key_start, max(entry.key_end, entry.value.end)
    if index + 1 < len(parent.entries):
        after = parent.entries[index + 1].key_start
        _require_no_comment(text[end:after], entry)
        return text[:start] + text[after:]
    before = parent.entries[index - 1].value.end
    _require_no_comment(text[before:start], entry)
    return text[:before] + text[end:]


def _require_no_comment(between: str, entry: Entry) -> None:
    if any(mark in between for mark in ("#", "//", "/*")):
        raise EditError(f"a comment is next to `{entry.name}`")


def _parse_values(text: str, file: str) -> dict[str, Any]:
    """The values, as the most tolerant reader of the file has them."""
    if is_json(file, text):
        return parse_lenient(text, file).source.data
    return parse(text, file).data


def _set_value(data: Any, path: KeyPath, value: Any) -> None:
    """Set or remove a value; empty sections go."""
    inner = data.get(path[0]) if isinstance(data, dict) else value_at(data, path[:1])
    if isinstance(data, list) and not (isinstance(path[0], int) and path[0] < len(data)):
        raise EditError(f"`{join_key(path)}` has no place in the file")
    if len(path) == 1:
        if value is not None:
            data[path[0]] = value
        elif isinstance(data, dict):
            data.pop(path[0], None)
        return
    if inner is None and value is not None and isinstance(data, dict):
        inner = data[path[0]] = {}
    if isinstance(inner, (dict, list)):
        _set_value(inner, path[1:], value)
        if inner == {} and value is None and isinstance(data, dict):
            data.pop(path[0], None)
