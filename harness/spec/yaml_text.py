"""A run spec as YAML text that every reader of YAML takes for the same values, with comments at the top.

Written for people: sections on lines of their own, short maps and lists in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*")
_WORDS = frozenset("true false yes no on off null nan inf y n".split())


def document(spec: dict[str, Any], comments: Iterable[str] = (), remarks: Mapping[str, str] | None = None) -> str:
    """The whole file: `comments` at the top, `remarks` behind the values of dotted keys."""
    lines = [f"# {_ascii(line)}".rstrip() for line in comments]
    for name, value in spec.items():
        entry = _entry((name,), value, remarks or {})
        lines += ["", *entry] if isinstance(value, dict) and lines else entry
    return "\n".join(lines) + "\n"


def _entry(path: tuple[str, ...], value: Any, remarks: Mapping[str, str]) -> list[str]:
    start = "  " * (len(path) - 1) + text(str(path[-1])) + ":"
    if isinstance(value, dict) and value:
        return [start, *(line for key, item in value.items() for line in _entry((*path, key), item, remarks))]
    remark = remarks.get(".".join(map(str, path)))
    return [f"{start} {flow(value)}" + (f"  # {_ascii(remark)}" if remark else "")]


def flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(str(k))}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _number(value)
    return text(value) if isinstance(value, str) else str(value)


def _number(value: float) -> str:
    """With a point, without which YAML 1.1 takes `1e-05` for a text."""
    mantissa, e, power = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{int(power):+d}" if e else mantissa


def text(value: str) -> str:
    """Without quotes only where nobody can take it for something else."""
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    code = ord(char)
    if 0x20 <= code < 0x7F:
        return char
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _ascii(line: str) -> str:
    return "".join(char if 0x20 <= ord(char) < 0x7F else "?" for char in line)
