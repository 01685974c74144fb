# SPDX-License-Identifier: Apache-2.0
"""Every documented key of DeepSpeed's JSON: type, default, range, first and last release, successor.

`harness.spec.deepspeed_json_checks` has the findings about wrong keys; tables are parsed block by block, on demand.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from harness.facts.data_rows import read_rows
from harness.facts.deepspeed_version import Version, parse_version

DTYPES = tuple(
    """fp32 float32 float torch.float32 fp16 float16 half torch.float16 bf16 bfloat16 torch.bfloat16 int8
    torch.int8""".split()
)
"""Every name of a number format that DeepSpeed knows."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""No default, or none that JSON can express."""


class Bound(NamedTuple):
    """One side of a range: `op` is `ge`, `gt`, `le` or `lt`; holds from release `since` on."""

    op: str
    limit: float
    since: Version | None = None

    def allows(self, value: float) -> bool:
        """Is the value on the right side? Not a number is on no side."""
        return bool(getattr(operator, self.op)(value, self.limit))


class Key(NamedTuple):
    """One documented key: its `type` without the `?`, and the releases that read it."""

    name: str
    type: str
    nullable: bool = False
    default: Any = MISSING
    bounds: tuple[Bound, ...] = ()
    allowed: tuple[str, ...] = ()
    any_case: bool = False
    exact: bool = False
    no_bool: bool = False
    filled: bool = False
    raw: bool = False
    since: Version | None = None
    gone: Version | None = None
    successor: str | None = None
    alias: str | None = None
    was: tuple[Any, Version] | None = None

    def default_at(self, version: Version) -> Any:
        """The default in a release; MISSING if the key has no default."""
        return self.was[0] if self.was and version < self.was[1] else self.default


class _Block(NamedTuple):
    """The rows of a block, and the first release that reads it with a model of types."""

    rows: list[str]
    typed: Version | None


@cache
def block_keys(path: str) -> dict[str, Key] | None:
    """The documented keys of a block (`` is the top level), or None where anything goes or the block is unknown."""
    block = _load_blocks().get(path)
    if block is None:
        return None
    keys = {key.name: key for row in block.rows for key in _parse_row(row)}
    for name, key in [*keys.items()]:
        if key.alias:
            own = keys[key.alias]
            keys[name] = own._replace(name=name, alias=own.name)
        elif name.startswith("stage3_") and not key.successor:  # a field of this alias, and pydantic reads both names
            keys[name[7:]] = key._replace(name=name[7:], alias=name)
    return keys


def is_typed_block(path: str, version: Version) -> bool:
    """Does this release read the block with a model of types?"""
    block = _load_blocks().get(path)
    return block is not None and block.typed is not None and version >= block.typed


def block_paths() -> tuple[str, ...]:
    """Every block with a table, training before utilities."""
    return tuple(_load_blocks())


@cache
def _load_blocks() -> dict[str, _Block]:
    """The blocks of `deepspeed_keys.txt`, which describes its rows."""
    blocks, outer = {"": _Block([], None)}, [""]
    for depth, row in read_rows("deepspeed_keys.txt"):
        blocks[outer[depth]].rows.append(row)
        name, kind, *attributes = row.split()
        if kind.rstrip("?") in ("block", "blocks", "maps") and "=>" not in row:
            path = f"{outer[depth]}.{name}".lstrip(".")
            outer[depth + 1 :] = [path]
            marks = dict(each.partition(":")[::2] for each in attributes)
            typed = parse_version(marks["typed"] or "0.0") if "typed" in marks else None
            blocks[path] = blocks[marks["as"]] if "as" in marks else _Block([], typed)
    return blocks


def _parse_row(row: str) -> Iterator[Key]:
    names, kind, *attributes = row.split()
    values: dict[str, Any] = {"bounds": ()}
    for mark, text in (re.fullmatch(r"(->|=>|>=|<|=|\w+:?)(.*)", each).groups() for each in attributes):  # type: ignore[union-attr]
        match mark:
            case ">=" | "<":
                values["since" if mark == ">=" else "gone"] = parse_version(text)
            case "->" | "=>":
                values["successor" if mark == "->" else "alias"] = text
            case "=":
                values["default"] = MISSING if text == "*" else json.loads(text)
            case "ge:" | "gt:" | "le:" | "lt:":
                limit, _, since = text.partition("@")
                values["bounds"] += (Bound(mark[:2], float(limit), parse_version(since) if since else None),)
            case "in:" | "IN:":
                values["allowed"] = DTYPES if text == "dtype" else tuple(text.split("|"))
                values["any_case"] = mark == "IN:"
            case "was:":
                before, _, version = text.partition("<")
                values["was"] = (json.loads(before), parse_version(version))
            case "nobool" | "exact" | "filled" | "raw":
                values["no_bool" if mark == "nobool" else mark] = True
            case _ if not mark.startswith(("typed", "as:")):  # which are of the block
                raise ValueError(f"{row}: {mark}{text}")
    key = Key("", kind.rstrip("?"), kind.endswith("?"), **values)
    yield from (key._replace(name=name) for name in names.split(","))
