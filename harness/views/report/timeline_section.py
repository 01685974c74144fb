# SPDX-License-Identifier: Apache-2.0
"""The time line: attempts as bars, checkpoints, evaluations and restarts on them, by the clock. Reads a record.

Runs whose lines have no time (format 1) are drawn by steps instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.run_records.run_files import Line
from harness.run_records.run_record import RunRecord
from harness.run_records.summary import last_change_time, start_time
from harness.units import finite_number, format_bytes, format_seconds
from harness.views.report.header import format_time
from harness.views.report.html_elements import Cell, escape, format_code, number_cell, render_details, render_table

_MAX_ENTRIES = 300
_MAX_MEASURED = 8
"""Columns of what is measured beside the loss."""


@dataclass(frozen=True, slots=True)
class _AttemptSpan:
    """One attempt: start and end (seconds since 1970), and its outcome."""

    name: str
    start: float
    end: float
    bad: bool


def render_timeline(record: RunRecord) -> str:
    """The picture, and below it a list of the events."""
    saves, evals, again = record.lines_of("save"), record.lines_of("eval"), record.lines_of("restart")
    if not (saves or evals or again):
        return ""
    spans = _attempt_spans(record)
    picture = _render_picture(record, spans) if spans else ""
    evaluations = _render_evaluations(evals, record.loss_unit)
    return f"<h2>Time line</h2>{picture}{_render_attempts(record)}{_render_saves(saves)}{evaluations}"


def _attempt_spans(record: RunRecord) -> list[_AttemptSpan]:
    """By restarts.json, which has the clock of every attempt; else by the line `run` and the last sign of life."""
    spans = []
    for attempt in record.attempts:
        began, ended = finite_number(attempt.get("began")), finite_number(attempt.get("ended"))
        if began is not None and ended is not None and ended >= began:
            spans.append(
                _AttemptSpan(f"attempt {attempt.get('number', '?')}", began, ended, attempt.get("state") == "failed")
            )
    last = last_change_time(record)
    first = start_time(record)
    if not spans and first is not None and last is not None and last > first:
        return [_AttemptSpan("the run", first, last, record.state in ("failed", "broken off"))]
    if spans and last is not None and last > spans[-1].end + 1:
        begins = finite_number(record.lines_of("run")[-1].get("time")) if record.lines_of("run") else None
        spans.append(_AttemptSpan(f"attempt {len(spans) + 1}", begins or spans[-1].end, last, bad=False))
    return spans


def _render_picture(record: RunRecord, spans: Sequence[_AttemptSpan]) -> str:
    begin, end = spans[0].start, max(span.end for span in spans)
    whole = (end - begin) or 1.0

    def at(moment: float) -> float:
        return min(100.0, max(0.0, 100 * (moment - begin) / whole))

    bars = "".join(_render_bar(s, at(s.start), at(s.end)) for s in spans[:_MAX_ENTRIES])
    ticks, kinds = "", []
    for kind, words in (("save", "checkpoint"), ("eval", "evaluation"), ("restart", "restart")):
        moments = [(finite_number(line.get("time")), line) for line in record.lines_of(kind)]
        entries = [(t, line) for t, line in moments if t is not None][:_MAX_ENTRIES]
        kinds += [f'<span class="key mark {kind}"><i></i>{words}</span>'] if entries else []
        ticks += "".join(_render_tick(kind, f"{words} after step {_step_of(line)}", at(t)) for t, line in entries)
    legend = f'<p class="legend">{"".join(kinds)}</p>' if kinds else ""
    words = f"{len(spans)} attempt{'s' if len(spans) > 1 else ''} in {format_seconds(end - begin)}"
    label = escape(words, quote=True)
    ends = "".join(f"<span>{escape(text)}</span>" for text in (format_time(begin), words, format_time(end)))
    timeline = f'<div class="timeline" role="img" aria-label="{label}">{bars}{ticks}</div>'
    return f'<div class="card">{legend}{timeline}<p class="ends">{ends}</p></div>'


def _render_bar(s: _AttemptSpan, left: float, right: float) -> str:
    title = escape(f"{s.name}, {format_seconds(s.end - s.start)}", quote=True)
    place = f"left:{left:.2f}%;width:{max(0.3, right - left):.2f}%"
    css, sign = (" bad", " &#10007;") if s.bad else ("", "")
    return f'<div class="span{css}" style="{place}" title="{title}"><span>{escape(s.name)}{sign}</span></div>'


def _render_tick(kind: str, title: str, left: float) -> str:
    return f'<i class="tick {kind}" style="left:{left:.2f}%" title="{escape(title, quote=True)}"></i>'


def _render_attempts(record: RunRecord) -> str:
    rows: list[list[str | Cell]] = []
    for attempt in record.attempts[:_MAX_ENTRIES]:
        began, ended = finite_number(attempt.get("began")), finite_number(attempt.get("ended"))
        duration = "" if began is None or ended is None else format_seconds(max(0.0, ended - began))
        figures = [number_cell(str(attempt.get(key, ""))) for key in ("number", "start_step", "step", "saved_step")]
        rank, host = attempt.get("rank"), attempt.get("host")
        who = "" if rank is None else f" on rank {rank}" + (f" ({host})" if host else "")
        how = f"{attempt.get('state', '')}{who}: {attempt.get('cause', '')}".strip(": ")
        rows.append([*figures, number_cell(duration), Cell(format_code(how))])
    head = ["attempt", "from step", "to step", "saved", "time", "outcome"]
    return render_details(f"{len(record.attempts)} attempts", render_table(head, rows)) if rows else ""


def _render_saves(saves: Sequence[Line]) -> str:
    rows: list[list[str | Cell]] = []
    for line in saves[-_MAX_ENTRIES:]:
        path = Cell(f"<code>{escape(str(line.get('path', '')))}</code>")
        size = finite_number(line.get("bytes"))
        times = [
            number_cell("" if t is None else format_seconds(t))
            for t in (finite_number(line.get(k)) for k in ("seconds", "stall_seconds"))
        ]
        rows.append(
            [number_cell(_step_of(line)), path, number_cell("" if size is None else format_bytes(size)), *times]
        )
    head = ["step", "folder", "size", "time", "training waited"]
    return render_details(_format_heading(len(saves), "checkpoint"), render_table(head, rows)) if rows else ""


def _render_evaluations(evals: Sequence[Line], unit: str) -> str:
    kinds = ["loss"] + ["perplexity"] * (unit == "token")
    names = list(dict.fromkeys(name for line in evals for name in _measured(line)))[:_MAX_MEASURED]
    rows: list[list[str | Cell]] = []
    for line in evals[-_MAX_ENTRIES:]:
        figures = [finite_number(line.get(key)) for key in kinds]
        figures += [finite_number(_measured(line).get(name)) for name in names]
        seconds = finite_number(line.get("seconds"))
        cells = [number_cell("" if v is None else f"{v:.4g}") for v in figures]
        rows.append(
            [number_cell(_step_of(line)), *cells, number_cell("" if seconds is None else format_seconds(seconds))]
        )
    head = ["step", *kinds, *(name.replace("_", " ") for name in names), "time"]
    return render_details(_format_heading(len(evals), "evaluation"), render_table(head, rows)) if rows else ""


def _measured(line: Line) -> Mapping[str, Any]:
    """The metrics of an evaluation beside the loss."""
    maps = (line.get(key) for key in ("metrics", "own"))
    return {name: value for one in maps if isinstance(one, Mapping) for name, value in one.items()}


def _format_heading(count: int, name: str) -> str:
    left = f", the last {_MAX_ENTRIES} shown" if count > _MAX_ENTRIES else ""
    return f"{count:,} {name}{'s' if count > 1 else ''}{left}"


def _step_of(line: Line) -> str:
    return str(line.get("step", "?"))
