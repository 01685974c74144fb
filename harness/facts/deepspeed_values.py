# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's reading of one value under one key: as written, converted, or refused.

Looks at a key alone; `harness.gates` checks combinations.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from harness.facts.deepspeed_keys import Key
from harness.facts.deepspeed_version import Version

_TRUE = frozenset(("1", "true", "t", "yes", "y", "on"))
_FALSE = frozenset(("0", "false", "f", "no", "n", "off"))
_WHOLE = re.compile(r"\s*[+-]?\d+(_\d+)*(\.0+)?\s*")
_CLASSES = {"str": str, "list": list, "blocks": list, "dict": dict, "block": dict, "maps": dict}


class ValueReading(NamedTuple):
    """The outcome is `as written`; `converted` (to `value`, with the same meaning); `misread` (as `value`, with another
    meaning); or `refused` (by DeepSpeed, or by the code that it passes the value to). `out_of_range`: refused for its
    size alone, or because it is none of the allowed words.
    """

    outcome: str
    value: Any = None
    out_of_range: bool = False


def interpret_value(key: Key, value: Any, *, is_typed: bool, version: Version) -> ValueReading:
    """A release's reading of `value`; `is_typed`: it reads the block with pydantic's models."""
    if key.type == "any":
        return ValueReading("as written", value)
    if value is None and key.nullable:
        return ValueReading("as written")
    reading = _interpret_by_type(key, value, is_typed)
    if reading.outcome == "refused" or reading.value is None:
        return reading
    return reading if _is_allowed(key, reading.value, version) else ValueReading("refused", value, out_of_range=True)


def _interpret_by_type(key: Key, value: Any, is_typed: bool) -> ValueReading:
    if key.type == "flag":  # no text: DeepSpeed compares its value, passes it on, or joins it by `|` (`exact`)
        is_refused = key.exact and isinstance(value, float)
        return ValueReading("refused", value) if is_refused else _interpret_bool(value, is_typed=False)
    if key.type in ("bool", "switch"):
        return _interpret_bool(value, is_typed=True) if is_typed and key.type == "bool" else _interpret_switch(value)
    if key.type in ("int", "number"):
        return _interpret_number(key, value, is_typed)
    return _interpret_by_class(key, value)


def _interpret_bool(value: Any, is_typed: bool) -> ValueReading:
    """A typed switch: 0 and 1, and the words that pydantic knows."""
    if isinstance(value, bool):
        return ValueReading("as written", value)
    if isinstance(value, (int, float)) and value in (0, 1):
        return ValueReading("converted", bool(value))
    word = value.lower() if isinstance(value, str) else None
    if is_typed and word is not None and word in _TRUE | _FALSE:
        return ValueReading("converted", word in _TRUE)
    return ValueReading("refused", value)


def _interpret_switch(value: Any) -> ValueReading:
    """An untyped switch is read by truth: any text but the empty one is on."""
    if isinstance(value, bool):
        return ValueReading("as written", value)
    if isinstance(value, str):
        meaning = value.lower() in _TRUE if value.lower() in _TRUE | _FALSE else None
        return ValueReading("converted" if meaning is bool(value) else "misread", bool(value))
    is_zero_or_one = value is None or (isinstance(value, (int, float)) and value in (0, 1))
    return ValueReading("converted" if is_zero_or_one else "misread", bool(value))


def _interpret_number(key: Key, value: Any, is_typed: bool) -> ValueReading:
    is_whole = key.type == "int"
    if isinstance(value, bool):
        number = int(value) if is_whole else float(value)
        return ValueReading("refused" if key.no_bool else "converted" if is_typed else "misread", number)
    if isinstance(value, float) and is_whole:
        is_refused = key.exact or not value.is_integer() or abs(value) > 9.2e18
        return ValueReading("refused", value) if is_refused else ValueReading("as written", int(value))
    if isinstance(value, (int, float)):
        return ValueReading("as written", value)
    if not is_typed or not isinstance(value, str) or (is_whole and (key.raw or not _WHOLE.fullmatch(value))):
        return ValueReading("refused", value)
    try:
        return ValueReading("converted", int(value.partition(".")[0]) if is_whole else float(value))
    except ValueError:
        return ValueReading("refused", value)


def _interpret_by_class(key: Key, value: Any) -> ValueReading:
    if isinstance(value, _CLASSES.get(key.type, ())):
        return ValueReading("as written", value)
    if key.type == "list" and key.name in ("classes", "names", "name_suffixes") and isinstance(value, str):
        return ValueReading("converted", [value])
    return ValueReading("refused", value)


def _is_allowed(key: Key, value: Any, version: Version) -> bool:
    """Is the value in the range, and one of the words? (For a list: each of its items.)"""
    if key.allowed:
        words = [str(item) for item in value] if isinstance(value, list) else [str(value)]
        allowed = [word.lower() for word in key.allowed] if key.any_case else key.allowed
        if any((word.lower() if key.any_case else word) not in allowed for word in words):
            return False
    if key.filled and not value:
        return False
    if not key.bounds or not isinstance(value, (int, float)):
        return True
    return all(bound.allows(value) for bound in key.bounds if bound.since is None or version >= bound.since)
