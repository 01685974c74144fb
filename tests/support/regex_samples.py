# SPDX-License-Identifier: Apache-2.0
"""Texts that keep a search for a regular expression busy: those that match a part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from re import _compiler as compiler  # type: ignore[attr-defined]
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)
_MANY = 30
_CANDIDATES = ["a", "1", "/", ".", " ", ":", "_", "=", "-", '"', "'", "A", *map(chr, range(32, 127)), "\n"]


def sample_parts(pattern: str) -> list[str]:
    """A shortest text for each part of the pattern between its repetitions without a limit."""
    parts: list[list[Any]] = [[]]
    for node in _flatten(parser.parse(pattern)):
        if node is None:
            parts.append([])
        else:
            parts[-1].append(node)
    return [text for text in dict.fromkeys(_sample(part).strip("\n") for part in parts) if text]


def _flatten(nodes: Iterable[Any]) -> Iterator[Any]:
    """The nodes of a sequence with those of its groups; None for a repetition without a limit."""
    for op, value in nodes:
        if op in _REPEATS and value[1] > _MANY:
            yield None
        elif op is ops.SUBPATTERN:
            yield from _flatten(value[-1])
        elif op is ops.ATOMIC_GROUP:
            yield from _flatten(value)
        elif op is ops.ASSERT and value[0] > 0:
            yield from _flatten(value[1])
            yield None
        else:
            yield op, value


def _sample(nodes: Iterable[Any]) -> str:
    return "".join(_sample_node(op, value) for op, value in nodes)


def _sample_node(op: Any, value: Any) -> str:
    if op is ops.LITERAL:
        return chr(value)
    if op in (ops.IN, ops.ANY, ops.NOT_LITERAL):
        one = compiler.compile(parser.SubPattern(parser.State(), [(op, value)]))
        return next((each for each in _CANDIDATES if one.fullmatch(each)), "")
    if op in _REPEATS:
        return _sample(value[2]) * value[0]
    if op is ops.BRANCH:
        return _sample(value[1][0])
    inner = value if op is ops.ATOMIC_GROUP else value[-1] if op is ops.SUBPATTERN else ()
    return _sample(value[1] if op is ops.ASSERT and value[0] > 0 else inner)
