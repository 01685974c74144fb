# SPDX-License-Identifier: Apache-2.0
"""A line -> its cause. Messages of gates are tried before the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from harness.diagnosis.causes import all_causes
from harness.diagnosis.deepspeed_messages import deepspeed_causes, match_own_finding
from harness.diagnosis.diagnosis_types import EventLevel, FailureCause, Frame
from harness.diagnosis.pydantic_messages import match_pydantic_error

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|Warning|Failure|Expired)\b(?::|$)"
)
_TRACEBACK_END = re.compile(r"^(?:(?:[A-Za-z_]\w*|<\w+>)\.)*[A-Z]\w*(?::|$)")
_WARNING_LINE = re.compile(
    r"^(?:\w+\.)*\w*Warning\b|^Exception ignored in|ERROR: ld\.so|^\s*warnings\.warn"
    r"|^(?:\[\w+\] )*\[?(?:WARNING|WARN|INFO|DEBUG)\b|\b(?:Warning|INFO|WARNING):"
)
"""Lines of warnings, and lines that Python prints at its end. They report no failure."""


class Match(NamedTuple):
    """The cause of a line; an empty `cause` is an unknown exception."""

    cause: str
    level: EventLevel
    sure: bool
    details: Mapping[str, str]


class _Rule(NamedTuple):
    cause: FailureCause
    literal: str
    pattern: re.Pattern[str]
    frames: re.Pattern[str] | None
    sure: bool
    frames_required: bool


@cache
def _compile_rules() -> tuple[_Rule, ...]:
    return tuple(
        _Rule(
            cause,
            longest_literal(signature.pattern),
            re.compile(signature.pattern),
            re.compile(signature.frames) if signature.frames else None,
            signature.sure,
            signature.frames_required,
        )
        for cause in (*deepspeed_causes(), *all_causes())
        for signature in cause.signatures
    )


def match_line(text: str, frames: Sequence[Frame], *, in_traceback: bool) -> Match | None:
    """The cause of the line; None for no failure. `frames`: the traceback that the line ends, if any."""
    id_ = match_own_finding(text)
    if id_:
        return Match(id_, "root", True, {})
    match = _match_known_cause(text, frames)
    if match is not None:
        return match
    if _WARNING_LINE.search(text):
        return None
    if _EXCEPTION.match(text) or (in_traceback and _TRACEBACK_END.match(text)):
        return Match("", "root", False, {})
    return None


def is_exception_line(text: str) -> bool:
    """Is the line an exception's last one, such as `ValueError: ...`?"""
    return bool(_EXCEPTION.match(text))


def _match_known_cause(text: str, frames: Sequence[Frame]) -> Match | None:
    finding_id = match_pydantic_error(text)
    if finding_id is not None:
        return Match(finding_id, "root", True, {})
    is_warning = bool(_WARNING_LINE.search(text))
    for rule in _compile_rules():
        if rule.literal not in text or (
            is_warning and rule.cause.level != "hint" and rule.cause.id not in _CAUSES_IN_WARNINGS
        ):
            continue
        match = rule.pattern.search(text)
        if match is None:
            continue
        sure = rule.sure
        if rule.frames is not None:
            if not frames:
                if rule.frames_required:
                    continue
                sure = False
            elif not any(rule.frames.search(f"{f.file} {f.function}") for f in frames):
                continue
        details = {key: value for key, value in match.groupdict().items() if value is not None}
        return Match(rule.cause.id, rule.cause.level, sure, details)
    return None


_CAUSES_IN_WARNINGS = frozenset({"LG016", "LG023", "LG069", "LG072", "ZR032"})
"""Causes that appear in warnings: a missing libaio, messages of the kernel and NCCL, a signal to the launcher."""


def longest_literal(pattern: str) -> str:
    """The longest text that every match of the pattern contains; empty where there is none."""
    flat = _strip_groups(pattern)
    if "|" in flat:
        return ""
    flat = re.sub(r"\[(?:\\.|[^\]\\])*\](?:[?*+]|\{[^}]*\})?", "\0", flat)
    flat = re.sub(r"\\([wWdDsSbB])(?:[?*+]|\{[^}]*\})?", "\0", flat)
    flat = re.sub(r"(?:\\.|[^\\])(?:[?*]|\{[^}]*\})", "\0", flat)
    flat = re.sub(r"(?<!\\)[.^$+]", "\0", flat)
    flat = re.sub(r"\\(.)", r"\1", flat)
    return max(flat.split("\0"), key=len)


def _strip_groups(pattern: str) -> str:
    """The pattern without its groups and their quantifiers."""
    parts, depth, index = [], 0, 0
    while index < len(pattern):
        char = pattern[index]
        if char == "\\":
            if not depth:
                parts.append(pattern[index : index + 2])
            index += 2
            continue
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                parts.append("\0")
                rest = re.match(r"[?*+]|\{[^}]*\}", pattern[index + 1 :])
                index += len(rest[0]) if rest else 0
        elif char == "[":
            end = pattern.index("]", index + 2)
            if not depth:
                parts.append(pattern[index : end + 1])
            index = end
        elif not depth:
            parts.append(char)
        index += 1
    return "".join(parts)
