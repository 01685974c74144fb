# SPDX-License-Identifier: Apache-2.0
"""YAML into values with their places. YAML 1.2's numbers, no tags, no merge keys; bounded in size and depth."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import yaml
from yaml.events import CollectionEndEvent, CollectionStartEvent, NodeEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from harness import input_limits
from harness.errors import UserError
from harness.findings import Finding, Fix, Label, Place
from harness.spec.parse.source import EntryPlace, KeyPath, Source, input_error, join_key, not_a_map_error

MAX_NODES = 100_000
MAX_DEPTH = 60
MAX_DIGITS = 60
_NESTING_FIX = "a run spec has a few levels"
_TAGS = frozenset(("null", "bool", "int", "float", "str", "seq", "map"))
_BaseLoader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"


def _case_variants(words: str) -> str:
    return "|".join(f"{word}|{word.capitalize()}|{word.upper()}" for word in words.split())


# PyYAML follows YAML 1.1, where `1e-5` is a text and `1:30` is 90; users mean what YAML 1.2 says.
_PATTERNS: tuple[tuple[str, str, str], ...] = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", _case_variants("true false yes no on off"), "tTfFyYnNoO"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F_]+|0o[0-7]+", "-+0123456789"),
    ("tag:yaml.org,2002:float", rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.0123456789"),
)


class _Loader(_BaseLoader):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own shape)


for _tag, _pattern, _first in _PATTERNS:
    for _char in _first:
        _Loader.yaml_implicit_resolvers.setdefault("" if _char == "\0" else _char, []).append(
            (_tag, re.compile(f"(?:{_pattern})$"))
        )

_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@lru_cache(maxsize=2)
def parse(text: str, file: str) -> Source:
    """The file as a Source. Raises UserError for syntax that YAML does not know, and for a root that is not a map.

    The last files stay in a cache: a folder is searched for files to check, and an upgrade checks a file twice.
    """
    try:
        _check_size(text, file)
        root = compose_nodes(text)
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, file) from None
    reader = _NodeReader(file)
    value = reader.read_value(root, (), None) if root is not None else None
    if reader.findings:
        raise UserError(reader.findings)
    if not isinstance(value, dict):
        raise not_a_map_error(value, Place(file, 1, 1), text)
    return Source(file, "yaml", text, value, reader.spots)


def _check_size(text: str, file: str) -> None:
    """Raises UserError where lists and maps are nested deeper than `MAX_DEPTH`, and for more keys and values than a
    file of `MAX_NODES` values has; yaml.YAMLError for wrong syntax.

    libyaml's composer calls itself for each level, in C: 30,000 brackets end the process. Its events come one by one.
    From PyYAML 6.0.4 on, its scanner, which looks ahead of the events, has a limit of its own: 1,000 levels.
    """
    loader = _Loader(text)
    depth = num_nodes = 0
    try:
        while (event := loader.get_event()) is not None:
            num_nodes += isinstance(event, NodeEvent)
            if num_nodes > 2 * MAX_NODES:
                place = Place(file, event.start_mark.line + 1, event.start_mark.column + 1, 1)
                message = f"the file has more than {2 * MAX_NODES:,} keys and values"
                raise input_error("SP002", message, place, "is this a run spec?")
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise _nesting_error(event.start_mark, file)
    except yaml.scanner.ScannerError as error:
        if error.problem != "exceeded maximum nesting depth" or error.problem_mark is None:
            raise
        raise _nesting_error(error.problem_mark, file) from None
    finally:
        loader.dispose()


def _nesting_error(mark: yaml.Mark, file: str) -> UserError:
    place = Place(file, mark.line + 1, mark.column + 1, 1)
    return input_error("SP002", f"the file is nested deeper than {MAX_DEPTH} levels", place, _NESTING_FIX)


def compose_nodes(text: str) -> Node | None:
    """The tree of nodes of a text without syntax errors, with their marks. Raises yaml.YAMLError."""
    loader = _Loader(text)
    try:
        root: Node | None = loader.get_single_node()
        return root
    finally:
        loader.dispose()


def parse_scalar(text: str) -> Any:
    """One value as YAML reads it (for `--set key=value`): `8`, `1e-5`, `true`, `[a, b]`, `{device: cpu}`, else the
    text.

    Raises UserError for wrong syntax.
    """
    try:
        _check_size(text, "--set")
        root = compose_nodes(text)
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, "--set") from None
    reader = _NodeReader("--set")
    value = reader.read_value(root, (), None) if root is not None else None
    if reader.findings:
        raise UserError(reader.findings)
    return value


class _NodeReader:
    """Walks the node tree once and counts its values, so that a bomb of aliases ends early."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.spots: dict[KeyPath, EntryPlace] = {}
        self.findings: list[Finding] = []
        self.num_values = 0

    def read_value(self, node: Node, path: KeyPath, key: Place | None) -> Any:
        """The node's plain value; records its place."""
        self.num_values += 1
        if len(path) > MAX_DEPTH:
            message = f"the file is nested deeper than {MAX_DEPTH} levels"  # by an alias to what it stands in
            raise input_error("SP002", message, self.place(node), _NESTING_FIX)
        if self.num_values > MAX_NODES:
            raise input_error("SP002", "the file expands to too many values", self.place(node), "drop the aliases")
        if node.tag.rsplit(":", 1)[-1] not in _TAGS:
            raise input_error("SP002", f"the tag `{node.tag}` is not supported", self.place(node), "remove the tag")
        self.spots[path] = EntryPlace(key, self.place(node))
        if isinstance(node, MappingNode):
            return self.read_mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.read_value(item, (*path, index), None) for index, item in enumerate(node.value)]
        return self.read_scalar(node) if isinstance(node, ScalarNode) else None

    def read_mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self.place(key_node)
            if not isinstance(key_node, ScalarNode):
                raise input_error("SP002", "a key must be a plain word", place, "write `key: value`")
            name = str(key_node.value)
            if name == "<<" and not key_node.style:
                raise input_error("SP002", "merge keys (`<<`) are not read", place, "write the keys out")
            if name in result:
                if len(self.findings) == input_limits.FINDINGS:
                    message = f"more than {input_limits.FINDINGS:,} keys are written twice"
                    raise input_error("SP004", message, place, "keep each key once")
                first = self.spots[(*path, name)].key
                self.findings.append(
                    Finding(
                        "SP004",
                        "error",
                        f"`{join_key((*path, name))}` is written twice",
                        key=join_key((*path, name)),
                        place=place,
                        label="again here",
                        related=(Label(first, "first here"),) if first else (),
                        notes=("YAML readers silently keep the last one",),
                        fix=Fix("keep one of them"),
                    )
                )
                continue
            result[name] = self.read_value(value_node, (*path, name), place)
        return result

    def read_scalar(self, node: ScalarNode) -> Any:
        text, kind = str(node.value), node.tag.rsplit(":", 1)[-1]
        if node.style in ('"', "'", "|", ">"):
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return _BOOLS.get(text.lower(), text)
        try:
            return _parse_number(kind, text)
        except ValueError:
            message = f"a number of {len(text)} digits" if len(text) > MAX_DIGITS else f"`{text}` is not a number"
            raise input_error("SP002", message, self.place(node), "write a number, or quotes around a text") from None

    def place(self, node: Node) -> Place:
        start, end = node.start_mark, node.end_mark
        length = end.column - start.column if end.line == start.line else 0
        return Place(self.file, start.line + 1, start.column + 1, max(length, 0))


def _parse_number(kind: str, text: str) -> Any:
    """The number that `text` is, or the text itself when its kind is neither int nor float. Raises ValueError."""
    if kind in ("int", "float") and len(text) > MAX_DIGITS:
        raise ValueError(text)
    if kind == "int":
        return int(text.replace("_", ""), 0 if text.startswith(("0x", "0o")) else 10)
    if kind == "float":
        return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _syntax_error(error: yaml.YAMLError, text: str, file: str) -> UserError:
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or "this is not YAML")
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    lines = text.split("\n")
    line_text = lines[line] if line < len(lines) else ""
    if "\t" in line_text[: column + 1] or line_text.startswith("\t"):
        column = line_text.index("\t")
        return input_error(
            "SP002",
            "a tab is used for indentation, which YAML does not allow",
            Place(file, line + 1, column + 1, 1),
            "indent with spaces",
        )
    return input_error(
        "SP002", f"not YAML: {problem}", Place(file, line + 1, column + 1, 1), "fix the line, or the one above it"
    )
