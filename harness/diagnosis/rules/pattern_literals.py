# SPDX-License-Identifier: Apache-2.0
"""A regular expression -> texts of which every match contains one. A line without any of them need not be searched."""

from __future__ import annotations

import re

_GOOD_CHARS = 8
"""Shorter texts occur in many lines. Among longer ones a single text is best, then the longest."""
_QUANTIFIER = re.compile(r"(?P<optional>[?*]|\{0?,\d*\}|\{0\})[?+]?|(?P<repeated>\+|\{\d+(?:,\d*)?\})[?+]?")
_GROUP_START = re.compile(r"\((?:\?:|\?P<\w+>|(?P<look>\?<?[=!]))?")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_ZERO_WIDTH = frozenset(["^", "$", r"\b", r"\B", r"\A", r"\Z"])
_NOT_LITERAL = frozenset(r"\d \D \w \W \s \S .".split())


def find_literals(pattern: str) -> tuple[str, ...]:
    """Texts of which each match of the pattern contains at least one; empty where there are none. Raises ValueError for
    escapes of single characters and groups, such as `\\t` and `\\1`.
    """
    return _Parser(pattern).read_alternatives()


class _Parser:
    """Reads a pattern from left to right. Knows the syntax that the catalogue uses; no flags, no conditions."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._index = 0

    def read_alternatives(self) -> tuple[str, ...]:
        """The literals up to the end of the group: those of all alternatives, or none if one lacks them."""
        sequences = [self._read_sequence()]
        while self._pattern.startswith("|", self._index):
            self._index += 1
            sequences.append(self._read_sequence())
        return tuple(dict.fromkeys(text for texts in sequences for text in texts)) if all(sequences) else ()

    def _read_sequence(self) -> tuple[str, ...]:
        """The best literals of one alternative."""
        choices: list[tuple[str, ...]] = []
        run = ""
        while self._index < len(self._pattern) and self._pattern[self._index] not in "|)":
            char, group = self._read_atom()
            optional, repeated = self._read_quantifier()
            if char and not optional:
                run += char
            if not char or optional or repeated:
                if group is None and not optional and not repeated:
                    continue  # an anchor or a look-around: what stands around it is adjacent
                choices.append((run,))
                run = ""
                if group and not optional:
                    choices.append(group)
        choices.append((run,))
        return max((texts for texts in choices if all(texts)), key=_quality, default=())

    def _read_atom(self) -> tuple[str, tuple[str, ...] | None]:
        """(a character, None), or ("", the literals of a group or class), or ("", None) for what has no width."""
        if match := _GROUP_START.match(self._pattern, self._index):
            self._index = match.end()
            literals = self.read_alternatives()
            self._index += 1
            return ("", None) if match["look"] else ("", literals)
        if match := _CLASS.match(self._pattern, self._index):
            self._index = match.end()
            return "", ()
        length = 2 if self._pattern[self._index] == "\\" else 1
        token = self._pattern[self._index : self._index + length]
        self._index += length
        if token in _ZERO_WIDTH:
            return "", None
        if token in _NOT_LITERAL:
            return "", ()
        if length == 2 and token[1].isalnum():
            raise ValueError(f"the escape {token} is not read here: {self._pattern}")
        return token[-1], None

    def _read_quantifier(self) -> tuple[bool, bool]:
        """Is the atom optional? May it be repeated?"""
        match = _QUANTIFIER.match(self._pattern, self._index)
        if match is None:
            return False, False
        self._index = match.end()
        return bool(match["optional"]), bool(match["repeated"])


def _quality(texts: tuple[str, ...]) -> tuple[int, bool, int]:
    shortest = min(map(len, texts))
    return min(shortest, _GOOD_CHARS), len(texts) == 1, shortest
