# SPDX-License-Identifier: Apache-2.0
"""A run spec as YAML text that every YAML reader takes for the same values, with comments at the top.

For people: sections on lines of their own, short maps and lists in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*")
_RESERVED_WORDS = frozenset("true false yes no on off null nan inf y n".split())


def format_document(
    spec: dict[str, Any], comments: Iterable[str] = (), remarks: Mapping[str, str] | None = None
) -> str:
    """The whole file: `comments` at the top, `remarks` behind the values of dotted keys."""
    lines = [f"# {_to_ascii(line)}".rstrip() for line in comments]
    for name, value in spec.items():
        entry = _format_entry((name,), value, remarks or {})
        lines += ["", *entry] if isinstance(value, dict) and lines else entry
    return "\n".join(lines) + "\n"


def _format_entry(path: tuple[str, ...], value: Any, remarks: Mapping[str, str]) -> list[str]:
    start = "  " * (len(path) - 1) + quote_text(str(path[-1])) + ":"
    if isinstance(value, dict) and value:
        return [start, *(line for key, item in value.items() for line in _format_entry((*path, key), item, remarks))]
    remark = remarks.get(".".join(map(str, path)))
    return [f"{start} {format_inline(value)}" + (f"  # {_to_ascii(remark)}" if remark else "")]


def format_inline(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quote_text(str(name))}: {format_inline(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(format_inline, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _format_float(value)
    return quote_text(value) if isinstance(value, str) else str(value)


def _format_float(value: float) -> str:
    """With a point: YAML 1.1 reads `1e-05` as a text."""
    mantissa, exponent_mark, power = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{int(power):+d}" if exponent_mark else mantissa


def quote_text(value: str) -> str:
    """Without quotes only where no reader takes it for something else."""
    if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED_WORDS:
        return value
    return '"' + "".join(map(_escape_char, value)) + '"'


def _escape_char(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    code = ord(char)
    if 0x20 <= code < 0x7F:
        return char
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _to_ascii(line: str) -> str:
    return "".join(char if 0x20 <= ord(char) < 0x7F else "?" for char in line)
