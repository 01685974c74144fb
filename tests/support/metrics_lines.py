# SPDX-License-Identifier: Apache-2.0
"""A line of `metrics.jsonl` against the schema of its type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.facts.metrics_schema import COMMON, LINES, FieldKind

_TYPES: Mapping[FieldKind, tuple[type, ...]] = {
    "count": (int,),
    "number": (int, float),
    "text": (str,),
    "flag": (bool,),
    "counts": (list,),
    "numbers": (list,),
    "texts": (list,),
    "map": (dict,),
}


def validate_line(body: Mapping[str, Any]) -> list[str]:
    """The errors of a line, in words. An unknown field is no error; a null is one where a field is not a number."""
    line = LINES.get(str(body.get("type")))
    if line is None:
        return [f"`type` is {body.get('type')!r}, should be one of {', '.join(LINES)}"]
    problems = [f"`{f.name}` is missing" for f in line.fields if f.always and f.name not in body]
    for field in (*COMMON, *line.fields):
        value = body.get(field.name)
        if value is None:
            if field.name in body and field.kind != "number":
                problems.append(f"`{field.name}` is null")
        elif not isinstance(value, _TYPES[field.kind]) or (isinstance(value, bool) and field.kind != "flag"):
            problems.append(f"`{field.name}` is {type(value).__name__}, should be a {field.kind}")
    return problems
