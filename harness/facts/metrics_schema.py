# SPDX-License-Identifier: Apache-2.0
"""The schema of `metrics.jsonl`: its types of lines and the meaning of each field. Data for writers and readers.

`python -m harness.views.metrics_page` prints it as the page `docs/metrics-fields.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

from harness.facts.data_rows import read_rows

FieldKind = Literal["count", "number", "text", "flag", "counts", "numbers", "texts", "map"]
SCHEMA_VERSION = 2
"""1: no `time`, no device, no FLOPs, no `ranks` nor `straggler` lines. A reader of 2 reads 1: fields are only added."""


@dataclass(frozen=True, slots=True)
class MetricsField:
    """One field of a line. `always`: every such line has it; `since`: the first version of the schema with it."""

    name: str
    kind: FieldKind
    unit: str
    meaning: str
    always: bool = False
    since: int = 1


@dataclass(frozen=True, slots=True)
class MetricsLine:
    """One type of line."""

    kind: str
    meaning: str
    fields: tuple[MetricsField, ...]


def _read_lines() -> dict[str, MetricsLine]:
    """The types of lines in `metrics_schema.txt`, which describes its form."""
    lines: dict[str, MetricsLine] = {}
    for depth, text in read_rows("metrics_schema.txt"):
        if not depth:
            kind, _, meaning = text.partition(" | ")
            lines[kind] = MetricsLine(kind, meaning, ())
        else:
            lines[kind] = replace(lines[kind], fields=(*lines[kind].fields, _parse_field(text)))
    return lines


def _parse_field(text: str) -> MetricsField:
    marked, kind, unit, meaning = (part.strip() for part in text.split("|", 3))
    name = marked.rstrip("*+")
    marks = marked[len(name) :]
    return MetricsField(name, cast("FieldKind", kind), unit, meaning, "*" in marks, 2 if "+" in marks else 1)


LINES: dict[str, MetricsLine] = _read_lines()
"""By their `type`."""
COMMON = LINES.pop("every line").fields
"""Fields of every line."""
