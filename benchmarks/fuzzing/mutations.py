# SPDX-License-Identifier: Apache-2.0
"""Changes of a file: of its bytes, of its lines, and of the values of a JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

MAX_BYTES = 12 << 20
"""A changed file is cut here: larger ones only test the size limit again."""

HOSTILE_TEXTS: Sequence[bytes] = (
    b"\0",
    b"\x1b[31m\x1b]0;title\x07",
    "\u009b\u202e\u2028\u2029\ufeff".encode(),
    b"\r",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"[" * 30_000,
    b"{" * 30_000,
    b'{"a":' * 3_000,
    b"- " * 5_000,
    b"A" * 200_000,
    b"9" * 100_000,
    b"-" * 70_000,
    b"1e999",
    b"NaN",
    b"-Infinity",
    b"-0",
    b"0x" + b"f" * 5_000,
    b"1" + b"0" * 400,
    b"null",
    b"true",
    b"''",
    b'""',
    b"~",
    b"&a [*a, *a]",
    b"<<: *a",
    b"!!python/object/apply:os.system [id]",
    b"!!binary AAAA",
    b"%YAML 1.1\n---\n",
    b"---\n",
    b"...\n",
    b"? {a: b}\n: c\n",
    b"|\n",
    b">-\n",
    b"#",
    b": ",
    b",",
    b"'",
    b'"',
    b"}",
    b"]",
    b'"\\ud800"',
    b'"\\u0000"',
    b"../" * 2_000 + b"etc/passwd",
    b"/dev/zero",
    b"/dev/stdin",
    b"/proc/self/environ",
    b"/proc/self/mem",
    b"~root",
    b"**/" * 40,
    b"$(id)",
    b"${HOME}",
    b"`id`",
    b"; id",
    b"\n::error::x\n",
    b"\n##[error]x\n",
    b"</script><img src=x>",
    b"{{ 7*7 }}",
    b"host[1-999999999]",
    b"slots=999999999999",
    b"-oProxyCommand=id",
    b"a" * 5_000 + b"@" + b"b" * 5_000,
    b" " * 50_000,
    b"\n" * 50_000,
    b"Error " * 2_000,
    b"[rank0]: Traceback (most recent call last):\n" * 300,
    "ä".encode() * 20_000,
    b"%n%s" * 500,
)
HOSTILE_VALUES: Sequence[Any] = (
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(2**63),
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    "\0",
    "\x1b[2J",
    "\u2028\u202e\u009b",
    "\ud800",
    "a\n::error::b",
    "../../../etc/passwd",
    "/etc/passwd",
    "-1",
    "1e309",
    "nan",
    "x" * 100_000,
    [],
    {},
    [None],
    [[]],
    {"": None},
    [0] * 20_000,
    {str(n): n for n in range(5_000)},
    "2026-02-30T99:99:99Z",
    "host[1-99999999]",
)


def mutate(data: bytes, others: Sequence[bytes], chance: random.Random, max_bytes: int) -> bytes:
    """The file with one to four changes, cut at `max_bytes`; `others` are files of the same kind."""
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 4))):
        data = chance.choice(_CHANGES)(data, others, chance)[:max_bytes]
    return data


def _change_value(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Replace, repeat or remove a value of a JSON, or of one line of JSON lines."""
    lines = data.split(b"\n")
    is_lines = len(lines) > 3 and all(line.startswith(b"{") for line in lines[:3])
    index = chance.randrange(len(lines)) if is_lines else 0
    try:
        whole = json.loads(lines[index] if is_lines else data)
    except (ValueError, RecursionError):
        return _insert_text(data, others, chance)
    for _ in range(chance.choice((1, 1, 2, 5))):
        places = list(_walk_places(whole))
        if not places:
            return data
        holder, key = chance.choice(places)
        kind = chance.random()
        if kind < 0.75:
            holder[key] = deepcopy(chance.choice(HOSTILE_VALUES))
        elif kind < 0.85 and isinstance(holder, dict):
            holder[chance.choice(("", "x" * 1_000, "\x1b[1m", "a\nb", "__class__", "../x"))] = deepcopy(holder.get(key))
        elif isinstance(holder, list) and key < len(holder):
            holder[key : key + 1] = [deepcopy(holder[key]) for _ in range(chance.choice((0, 2, 100)))]
        elif isinstance(holder, dict):
            holder.pop(key, None)
    try:
        text = json.dumps(whole).encode()
    except (ValueError, RecursionError):
        return data
    return b"\n".join((*lines[:index], text, *lines[index + 1 :])) if is_lines else text


def _walk_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every map or list with each of its keys. Not recursive: a change may have nested them deeply."""
    left = [value]
    while left:
        holder = left.pop()
        pairs = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, inner in pairs:
            yield holder, key
            left.append(inner)


def _flip_byte(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    if not data:
        return b"\0"
    place = chance.randrange(len(data))
    return data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]


def _insert_text(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.choice(HOSTILE_TEXTS) + data[place:]


def _replace_word(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    words = data.split(b" ")
    words[chance.randrange(len(words))] = chance.choice(HOSTILE_TEXTS)
    return b" ".join(words)


def _cut(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    first, last = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:first] + data[last:]


def _repeat_slice(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    first = chance.randrange(len(data) + 1)
    piece = data[first : first + chance.choice((1, 4, 40, 400, 4_000))]
    return data[:first] + piece * chance.choice((2, 10, 1_000, 20_000)) + data[first:]


def _move_line(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    line = lines.pop(chance.randrange(len(lines)))
    place = chance.randrange(len(lines) + 1)
    return b"\n".join((*lines[:place], *[line] * chance.choice((0, 1, 2, 500)), *lines[place:]))


def _splice(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    other = chance.choice(others)
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


_CHANGES: Sequence[Callable[[bytes, Sequence[bytes], random.Random], bytes]] = (
    _change_value,
    _change_value,
    _change_value,
    _flip_byte,
    _insert_text,
    _insert_text,
    _replace_word,
    _cut,
    _repeat_slice,
    _move_line,
    _splice,
)
