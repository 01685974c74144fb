"""The schema of `metrics.jsonl`: which lines there are and what each field means. Data for whoever writes or reads it.

Reads and writes no file. `python -m harness.facts.metrics_schema` prints it as the page `METRICS.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.facts.metrics_fields import COMMON, MEMORY, RANKS, RUN, STEP, STRAGGLER, Field, Kind, must, new

__all__ = ["COMMON", "LINES", "VERSION", "Field", "Line", "page", "problems"]

VERSION = 2
"""1: no `time`, no device, no FLOPs, no `ranks` nor `straggler` lines. A reader of 2 reads 1: fields are only added."""

_TYPES: Mapping[Kind, tuple[type, ...]] = {
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
class Line:
    """One type of line."""

    kind: str
    meaning: str
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        """The field of this name."""
        return next((f for f in self.fields if f.name == name), None)


LINES: Mapping[str, Line] = {
    line.kind: line
    for line in (
        Line("run", "Ranks begin to train: once an attempt.", RUN),
        Line("step", "One line every `logging.logging_steps` steps.", STEP),
        Line(
            "ranks",
            "All ranks beside each other, in rank order, every `telemetry.gather_steps` steps (with more than 64 ranks "
            "every so many times that the file grows no faster than with 64).",
            RANKS,
        ),
        Line("memory", "A phase of the run is over: once a start and phase.", MEMORY),
        Line("straggler", "A rank, or a host, is slower than its peers for some time.", STRAGGLER),
        Line(
            "eval",
            "An evaluation on the held-out part.",
            (
                must("step", "count", "", "steps done"),
                must("loss", "number", "nats", "mean over all predicted tokens"),
                must("perplexity", "number", "", "exp(loss)"),
                must("tokens", "count", "tokens", "predicted"),
                Field("unigram_entropy", "number", "nats", "as in `run`"),
                Field("own", "map", "", "what the plug-in's `metrics` computed"),
                new("seconds", "number", "s", "how long it took"),
            ),
        ),
        Line(
            "save",
            "A checkpoint is complete.",
            (
                must("step", "count", "", "the step that it holds"),
                must("path", "text", "", "relative to the run directory"),
                must("bytes", "count", "bytes", "of its files"),
                must("background", "flag", "", "written while training went on"),
                must("seconds", "number", "s", "from the first copy to the rename"),
                must("stall_seconds", "number", "s", "of these: training stood still"),
            ),
        ),
        Line(
            "save_failed",
            "A save went wrong; fields as of `save`, and the error.",
            (must("step", "count", "", "the step that was to be saved"), must("error", "text", "", "why")),
        ),
        Line(
            "skip",
            "A step changed nothing: a NaN or an infinity.",
            (
                must("step", "count", "", "which"),
                Field("ranks", "counts", "", "those with a loss that is no number"),
                must("skipped", "count", "", "in all"),
            ),
        ),
        Line(
            "stop",
            "Asked to stop: the last steps are over.",
            (must("step", "count", "", "the last"), must("reason", "text", "", "who asked")),
        ),
        Line(
            "restart",
            "The attempt before has died. Lines above with a later step were lost and are taken again.",
            (
                must("step", "count", "", "of the checkpoint that the next attempt goes on from; 0 without one"),
                must("attempt", "count", "", "the next attempt, from 2"),
                must("cause", "text", "", "why the one before died"),
                must("lost_step", "count", "", "how far it had come"),
                Field("rank", "count", "", "which rank died"),
                Field("resumed_from", "text", "", "the checkpoint"),
            ),
        ),
        Line(
            "tracker_failed",
            "A tracker is given up; training goes on.",
            (
                Field("step", "count", "", "when", always=True, since=2),
                Field("tracker", "text", "", "which", always=True, since=2),
                Field("error", "text", "", "why", always=True, since=2),
            ),
        ),
        Line(
            "profile",
            "A profile was written.",
            (
                Field("step", "count", "", "the last that it holds", always=True, since=2),
                Field("first_step", "count", "", "the first that it holds", always=True, since=2),
                Field("path", "text", "", "its folder, relative to the run directory", always=True, since=2),
            ),
        ),
        Line(
            "end",
            "Training has ended in order.",
            (
                must("step", "count", "", "steps done"),
                must("state", "text", "", "`completed` or `stopped`"),
                new("seconds", "number", "s", "since the line `run`"),
            ),
        ),
    )
}
"""By their `type`."""


def problems(body: Mapping[str, Any]) -> list[str]:
    """What is wrong with a line, in words; a field that is not known here is no fault, a null is one only where a field
    is not a number.
    """
    line = LINES.get(str(body.get("type")))
    if line is None:
        return [f"`type` is {body.get('type')!r}, should be one of {', '.join(LINES)}"]
    found = [f"`{f.name}` is missing" for f in line.fields if f.always and f.name not in body]
    for field in (*COMMON, *line.fields):
        value = body.get(field.name)
        if value is None:
            if field.name in body and field.kind != "number":
                found.append(f"`{field.name}` is null")
        elif not isinstance(value, _TYPES[field.kind]) or (isinstance(value, bool) and field.kind != "flag"):
            found.append(f"`{field.name}` is {type(value).__name__}, should be a {field.kind}")
    return found


def page() -> str:
    """The schema as Markdown."""
    out = [
        "# metrics.jsonl",
        "",
        f"Version {VERSION} (`format_version` of the `run` line). One JSON object a line, written by rank 0 and",
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
    sys.stdout.write(page())
