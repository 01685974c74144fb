# SPDX-License-Identifier: Apache-2.0
"""Bytes, counts and times as text for people: parsing, formatting, and the check that a value is a number.

Variables everywhere else are in bytes, elements and seconds; GiB exist only in text.
"""

from __future__ import annotations

import re
from typing import Any

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_MAX_NUMBER = 1e100
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?\s*", re.IGNORECASE)
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)? *[KMGTPkmgtp]?[Ii]?[Bb]?$"
"""The texts of `parse_bytes`, for JSON Schemas."""


def parse_bytes(text: str | int) -> int:
    """Bytes from `2TB` (decimal), `80GiB` (binary) or a plain number of bytes.

    Raises ValueError with a sentence for the user when the text is neither.
    """
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"{text} is negative")
        return text
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"`{text}` is not a size such as `80GiB` or `2TB`")
    number, prefix, binary = match.groups()
    return int(float(number) * (_BINARY if binary else _DECIMAL)[prefix.upper()])


_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*([KMBGT]?)\s*", re.IGNORECASE)
_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def parse_count(text: str) -> float:
    """A number from `70e9`, `70B`, `15T` or digits, commas and underscores allowed.

    Raises ValueError with a sentence for the user when the text is none, is not above 0, or is over 1e18.
    """
    match = _COUNT.fullmatch(text.replace(",", "").replace("_", ""))
    number = float(match[1]) * _COUNTS[match[2].upper()] if match else 0.0
    if not 0 < number <= 1e18:
        raise ValueError(f"`{text}` is not a number above 0 such as `70e9` or `15T`")
    return number


def format_bytes(count: float) -> str:
    """`1.50 GiB`; three figures, binary prefixes."""
    for prefix in ("", "Ki", "Mi", "Gi", "Ti", "Pi"):
        if abs(count) < 1024 or prefix == "Pi":
            return f"{count:.0f} B" if not prefix else f"{count:.2f} {prefix}B"
        count /= 1024
    raise ValueError(count)  # not reached: the last prefix takes everything


def format_trainable(trainable: float, total: float) -> str:
    """`4.19 M of 8.03 B (0.052%)`: the trainable parameters of a model, adapters included in both counts."""
    return f"{format_count(trainable)} of {format_count(total)} ({100 * trainable / max(total, 1):.3g}%)"


def format_count(count: float) -> str:
    """`13.02 B`, `7.1 M`; for parameters and tokens."""
    for limit, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(count) >= limit:
            return f"{count / limit:.2f}{suffix}"
    return f"{count:.0f}"


def pluralize(number: int, word: str) -> str:
    """`1 record`, `1,024 records`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def format_seconds(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s`, `4.2 s`, `180 ms`."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def finite_number(value: Any) -> float | None:
    """The value as a float; None unless it is a number below 1e100 in size, so that sums of such are finite too."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and -_MAX_NUMBER < value < _MAX_NUMBER
    return float(value) if usable else None
