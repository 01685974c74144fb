"""What DeepSpeed makes of one value under one key: taken as it is, converted, or refused.

Looks at a key alone; whether the value goes with others is the business of `harness.gates`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from harness.facts.deepspeed import Version
from harness.facts.deepspeed_keys import Key

_TRUE = frozenset("1 true t yes y on".split())
_FALSE = frozenset("0 false f no n off".split())
_PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "list": (list,),
    "dict": (dict,),
    "block": (dict,),
    "maps": (dict,),
    "blocks": (list,),
}


class Taken(NamedTuple):
    """`how` is `as written`; `converted` (to `value`, which says the same); `misread` (as `value`, which does not say
    what was written); or `refused` (by DeepSpeed, or by what it hands the value to). `range`: refused for its size
    alone, or for not being one of the allowed words.
    """

    how: str
    value: Any = None
    range: bool = False


def take(key: Key, value: Any, *, typed: bool, version: Version) -> Taken:
    """What a release makes of `value`; `typed` says whether the block is read with pydantic's models."""
    if key.type == "any":
        return Taken("as written", value)
    if value is None and key.nullable:
        return Taken("as written")
    taken = _take(key, value, typed)
    if taken.how == "refused" or taken.value is None:
        return taken
    return taken if _allowed(key, taken.value, version) else Taken("refused", value, range=True)


def _take(key: Key, value: Any, typed: bool) -> Taken:
    if key.type == "flag":  # no text will do: its value is compared or handed on
        return _boolean(value, typed=False)
    if key.type in ("bool", "switch"):
        return _boolean(value, typed=True) if typed and key.type == "bool" else _switch(value)
    if key.type == "int":
        return _whole(key, value, typed)
    return _number(key, value, typed) if key.type == "number" else _plain(key, value)


def _boolean(value: Any, typed: bool) -> Taken:
    """A typed switch: 0 and 1, and the words that pydantic knows."""
    if isinstance(value, bool):
        return Taken("as written", value)
    if isinstance(value, (int, float)) and value in (0, 1):
        return Taken("converted", bool(value))
    word = value.lower() if isinstance(value, str) else None
    if typed and word is not None and word in _TRUE | _FALSE:
        return Taken("converted", word in _TRUE)
    return Taken("refused", value)


def _switch(value: Any) -> Taken:
    """An untyped switch is read by truth: any text but the empty one is on."""
    if isinstance(value, bool):
        return Taken("as written", value)
    if isinstance(value, str):
        said = value.lower() in _TRUE if value.lower() in _TRUE | _FALSE else None
        return Taken("converted" if said is bool(value) else "misread", bool(value))
    same = value is None or (isinstance(value, (int, float)) and value in (0, 1))
    return Taken("converted" if same else "misread", bool(value))


def _whole(key: Key, value: Any, typed: bool) -> Taken:
    if isinstance(value, bool):
        return Taken("refused" if key.no_bool else "converted" if typed else "misread", int(value))
    if isinstance(value, int):
        return Taken("as written", value)
    if isinstance(value, float):
        if not value.is_integer() or abs(value) > 9.2e18:
            return Taken("refused", value)
        return Taken("refused", value) if key.exact else Taken("as written", int(value))
    if typed and not key.raw and isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+(_\d+)*(\.0+)?\s*", value):
        return Taken("converted", int(float(value)) if "." in value else int(value))
    return Taken("refused", value)


def _number(key: Key, value: Any, typed: bool) -> Taken:
    if isinstance(value, bool):
        return Taken("refused" if key.no_bool else "converted" if typed else "misread", float(value))
    if isinstance(value, (int, float)):
        return Taken("as written", value)
    if typed and isinstance(value, str):
        try:
            return Taken("converted", float(value))
        except ValueError:
            pass
    return Taken("refused", value)


def _plain(key: Key, value: Any) -> Taken:
    if isinstance(value, _PLAIN.get(key.type, ())):
        return Taken("as written", value)
    if key.type == "list" and key.name in ("classes", "names", "name_suffixes") and isinstance(value, str):
        return Taken("converted", [value])
    return Taken("refused", value)


def _allowed(key: Key, value: Any, version: Version) -> bool:
    """Is the value in the range, and one of the words? (For a list: each of its items.)"""
    if key.allowed:
        words = [str(item) for item in value] if isinstance(value, list) else [str(value)]
        known = [word.lower() for word in key.allowed] if key.any_case else key.allowed
        if any((word.lower() if key.any_case else word) not in known for word in words):
            return False
    if key.filled and not value:
        return False
    if not key.bounds or not isinstance(value, (int, float)):
        return True
    return all(b.allows(value) for b in key.bounds if b.since is None or version >= b.since)
