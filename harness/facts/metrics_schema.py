# SPDX-License-Identifier: Apache-2.0
"""The schema of `metrics.jsonl`: its types of lines and the meaning of each field. Data for writers and readers.

Reads and writes no file. `python -m harness.facts.metrics_schema` prints it as the page `METRICS.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.facts.metrics_fields import (
    COMMON,
    GPU,
    MEMORY,
    RANKS,
    RUN,
    STEP,
    STRAGGLER,
    FieldKind,
    MetricsField,
    required,
    since_v2,
)

__all__ = ["COMMON", "LINES", "SCHEMA_VERSION", "MetricsField", "MetricsLine", "to_markdown", "validate_line"]

SCHEMA_VERSION = 2
"""1: no `time`, no device, no FLOPs, no `ranks` nor `straggler` lines. A reader of 2 reads 1: fields are only added."""

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


@dataclass(frozen=True, slots=True)
class MetricsLine:
    """One type of line."""

    kind: str
    meaning: str
    fields: tuple[MetricsField, ...]

    def field(self, name: str) -> MetricsField | None:
        """The field of this name."""
        return next((f for f in self.fields if f.name == name), None)


LINES: Mapping[str, MetricsLine] = {
    line.kind: line
    for line in (
        MetricsLine("run", "Ranks begin to train: once an attempt.", RUN),
        MetricsLine("step", "One line every `logging.logging_steps` steps.", STEP),
        MetricsLine(
            "ranks",
            "Figures of all ranks, in rank order, every `telemetry.gather_steps` steps (with more than 64 ranks "
            "less often, so that the file grows no faster than with 64).",
            RANKS,
        ),
        MetricsLine("memory", "A phase of the run has ended: one line per start and phase.", MEMORY),
        MetricsLine("straggler", "A rank, or a host, is slower than its peers for some time.", STRAGGLER),
        MetricsLine("gpu", "A problem of a rank's GPU, as NVML reports it, began or ended.", GPU),
        MetricsLine(
            "eval",
            "An evaluation on the held-out part.",
            (
                required("step", "count", "", "steps done"),
                required("loss", "number", "nats", "mean over all predicted tokens"),
                required("perplexity", "number", "", "exp(loss)"),
                required("tokens", "count", "tokens", "predicted"),
                MetricsField("unigram_entropy", "number", "nats", "as in `run`"),
                MetricsField("own", "map", "", "what the plug-in's `metrics` computed"),
                since_v2("seconds", "number", "s", "how long it took"),
            ),
        ),
        MetricsLine(
            "save",
            "A checkpoint is complete.",
            (
                required("step", "count", "", "the step that it holds"),
                required("path", "text", "", "relative to the run directory"),
                required("bytes", "count", "bytes", "of its files"),
                required("background", "flag", "", "written while training went on"),
                required("seconds", "number", "s", "from the first copy to the rename"),
                required("stall_seconds", "number", "s", "of these: training stood still"),
                MetricsField("copy_seconds", "number", "s", "of these: before the write began; for a save in line all"),
            ),
        ),
        MetricsLine(
            "save_failed",
            "A save went wrong; fields as of `save`, and the error.",
            (required("step", "count", "", "the step that was to be saved"), required("error", "text", "", "why")),
        ),
        MetricsLine(
            "upload",
            "A checkpoint is complete in the object store of `checkpoint.upload_to`.",
            (
                since_v2("step", "count", "", "the step that it holds"),
                since_v2("url", "text", "", "the checkpoint there"),
                since_v2("bytes", "count", "bytes", "of its files"),
                since_v2("seconds", "number", "s", "from its first key to its manifest"),
            ),
        ),
        MetricsLine(
            "upload_failed",
            "A checkpoint is not in the object store; fields as of `upload`, and why.",
            (
                since_v2("step", "count", "", "the step that was to be uploaded"),
                since_v2("error", "text", "", "why"),
                since_v2("skipped", "flag", "", "no error: a newer checkpoint was there, or this one was removed"),
            ),
        ),
        MetricsLine(
            "skip",
            "A step changed nothing: a NaN or an infinity.",
            (
                required("step", "count", "", "which"),
                MetricsField("ranks", "counts", "", "those with a loss that is no number"),
                required("skipped", "count", "", "in all"),
            ),
        ),
        MetricsLine(
            "stop",
            "Asked to stop: the last steps are over.",
            (required("step", "count", "", "the last"), required("reason", "text", "", "who asked")),
        ),
        MetricsLine(
            "restart",
            "The attempt before has died. Lines above with a later step were lost and are taken again.",
            (
                required("step", "count", "", "of the checkpoint that the next attempt resumes from; 0 without one"),
                required("attempt", "count", "", "the next attempt, from 2"),
                required("cause", "text", "", "why the one before died"),
                required("lost_step", "count", "", "how far it had come"),
                MetricsField("rank", "count", "", "which rank died"),
                MetricsField("host", "text", "", "its host", since=2),
                MetricsField("resumed_from", "text", "", "the checkpoint"),
            ),
        ),
        MetricsLine(
            "rows_dropped",
            "Lines are missing here, which the disk did not take; training went on.",
            (
                MetricsField("rows", "count", "", "how many", always=True, since=2),
                MetricsField("error", "text", "", "why the last of them was not written", always=True, since=2),
            ),
        ),
        MetricsLine(
            "tracker_failed",
            "A tracker is disabled; training continues.",
            (
                MetricsField("step", "count", "", "when", always=True, since=2),
                MetricsField("tracker", "text", "", "which", always=True, since=2),
                MetricsField("error", "text", "", "why", always=True, since=2),
            ),
        ),
        MetricsLine(
            "profile",
            "A profile was written.",
            (
                MetricsField("step", "count", "", "the last that it holds", always=True, since=2),
                MetricsField("first_step", "count", "", "the first that it holds", always=True, since=2),
                MetricsField("path", "text", "", "its folder, relative to the run directory", always=True, since=2),
            ),
        ),
        MetricsLine(
            "end",
            "Training has ended in order.",
            (
                required("step", "count", "", "steps done"),
                required("state", "text", "", "`completed` or `stopped`"),
                since_v2("seconds", "number", "s", "since the line `run`"),
            ),
        ),
    )
}
"""By their `type`."""


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


def to_markdown() -> str:
    """The schema as Markdown."""
    out = [
        "# metrics.jsonl",
        "",
        f"Version {SCHEMA_VERSION} (`format_version` of the `run` line). One JSON object a line, written by rank 0 and",
        "flushed at once: a killed run keeps what it has said, and at most its last line is torn. A reader leaves out",
        "lines and fields that it does not know; fields are only ever added. A number that is not finite is `null`.",
        "Fields marked * are always there. This page is made from `harness/facts/metrics_schema.py`.",
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
