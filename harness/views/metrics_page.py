# SPDX-License-Identifier: Apache-2.0
"""The schema of `metrics.jsonl` as a page: `python -m harness.views.metrics_page > docs/metrics-fields.md`."""

from __future__ import annotations

import sys

from harness.facts.metrics_schema import LINES, SCHEMA_VERSION


def to_markdown() -> str:
    """The schema as Markdown."""
    out = [
        "# metrics.jsonl",
        "",
        f"Version {SCHEMA_VERSION} (`format_version` of the `run` line). One JSON object a line, written by rank 0 and",
        "flushed at once: a killed run keeps what it has said, and at most its last line is torn. A reader leaves out",
        "lines and fields that it does not know; fields are only ever added. A number that is not finite is `null`.",
        "Fields marked * are always there. This page is made from `harness/facts/metrics_schema.txt`.",
        "",
        "All lines have `type` and, from version 2 on, `time`, seconds since 1970.",
    ]
    for line in LINES.values():
        out += ["", f"## {line.kind}", "", line.meaning, "", "| Field | Unit | Meaning |", "| --- | --- | --- |"]
        out += [
            f"| `{f.name}`{'*' if f.always else ''} | {f.unit or ('list' if f.kind.endswith('s') else f.kind)} | "
            f"{f.meaning} |"
            for f in line.fields
        ]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.stdout.write(to_markdown())
