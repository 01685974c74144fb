"""The time line: attempts as bars, checkpoints, evaluations and restarts on them, by the clock. Reads a record.

Runs whose lines have no time (format 1) are drawn by steps instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.files import Line, number
from harness.records.record import Record
from harness.records.summary import changed, started
from harness.units import format_bytes, format_seconds
from harness.views.report.header import when
from harness.views.report.html import Cell, code, details, escape, num, table

_MOST = 300


@dataclass(frozen=True, slots=True)
class _Span:
    """One attempt: from and to (seconds since 1970), and how it ended."""

    name: str
    began: float
    ended: float
    bad: bool


def timeline(record: Record) -> str:
    """The picture, and below it what happened, line by line."""
    saves, evals, again = record.of("save"), record.of("eval"), record.of("restart")
    if not (saves or evals or again):
        return ""
    spans = _spans(record)
    drawn = _picture(record, spans) if spans else ""
    return f"<h2>Time line</h2>{drawn}{_restarts(record)}{_saves(saves)}{_evaluations(evals)}"


def _spans(record: Record) -> list[_Span]:
    """By restarts.json, which has the clock of every attempt; else by the line `run` and the last sign of life."""
    found = []
    for attempt in record.attempts:
        began, ended = number(attempt.get("began")), number(attempt.get("ended"))
        if began is not None and ended is not None and ended >= began:
            found.append(_Span(f"attempt {attempt.get('number', '?')}", began, ended, attempt.get("state") == "failed"))
    last = changed(record)
    first = started(record)
    if not found and first is not None and last is not None and last > first:
        return [_Span("the run", first, last, record.state in ("failed", "broken off"))]
    if found and last is not None and last > found[-1].ended + 1:
        begins = number(record.of("run")[-1].get("time")) if record.of("run") else None
        found.append(_Span(f"attempt {len(found) + 1}", begins or found[-1].ended, last, bad=False))
    return found


def _picture(record: Record, spans: Sequence[_Span]) -> str:
    begin, end = spans[0].began, max(span.ended for span in spans)
    whole = (end - begin) or 1.0

    def at(moment: float) -> float:
        return min(100.0, max(0.0, 100 * (moment - begin) / whole))

    bars = "".join(_bar(s, at(s.began), at(s.ended)) for s in spans[:_MOST])
    ticks, kinds = "", []
    for kind, words in (("save", "checkpoint"), ("eval", "evaluation"), ("restart", "restart")):
        moments = [(number(line.get("time")), line) for line in record.of(kind)]
        shown = [(t, line) for t, line in moments if t is not None][:_MOST]
        kinds += [f'<span class="key mark {kind}"><i></i>{words}</span>'] if shown else []
        ticks += "".join(_tick(kind, f"{words} after step {_step(line)}", at(t)) for t, line in shown)
    legend = f'<p class="legend">{"".join(kinds)}</p>' if kinds else ""
    words = f"{len(spans)} attempt{'s' if len(spans) > 1 else ''} in {format_seconds(end - begin)}"
    label = escape(words, quote=True)
    ends = "".join(f"<span>{escape(text)}</span>" for text in (when(begin), words, when(end)))
    drawn = f'<div class="timeline" role="img" aria-label="{label}">{bars}{ticks}</div>'
    return f'<div class="card">{legend}{drawn}<p class="ends">{ends}</p></div>'


def _bar(s: _Span, left: float, right: float) -> str:
    title = escape(f"{s.name}, {format_seconds(s.ended - s.began)}", quote=True)
    place = f"left:{left:.2f}%;width:{max(0.3, right - left):.2f}%"
    css, sign = (" bad", " &#10007;") if s.bad else ("", "")
    return f'<div class="span{css}" style="{place}" title="{title}"><span>{escape(s.name)}{sign}</span></div>'


def _tick(kind: str, title: str, left: float) -> str:
    return f'<i class="tick {kind}" style="left:{left:.2f}%" title="{escape(title, quote=True)}"></i>'


def _restarts(record: Record) -> str:
    rows: list[list[str | Cell]] = []
    for attempt in record.attempts[:_MOST]:
        began, ended = number(attempt.get("began")), number(attempt.get("ended"))
        took = "" if began is None or ended is None else format_seconds(max(0.0, ended - began))
        figures = [num(str(attempt.get(key, ""))) for key in ("number", "start_step", "step", "saved_step")]
        how = f"{attempt.get('state', '')}: {attempt.get('cause', '')}".strip(": ")
        rows.append([*figures, num(took), Cell(code(how))])
    head = ["attempt", "from step", "to step", "saved", "time", "how it ended"]
    return details(f"{len(record.attempts)} attempts", table(head, rows)) if rows else ""


def _saves(saves: Sequence[Line]) -> str:
    rows: list[list[str | Cell]] = []
    for line in saves[-_MOST:]:
        path = Cell(f"<code>{escape(str(line.get('path', '')))}</code>")
        size = number(line.get("bytes"))
        times = [
            num("" if t is None else format_seconds(t))
            for t in (number(line.get(k)) for k in ("seconds", "stall_seconds"))
        ]
        rows.append([num(_step(line)), path, num("" if size is None else format_bytes(size)), *times])
    head = ["step", "folder", "size", "time", "training stood still"]
    return details(_many(len(saves), "checkpoint"), table(head, rows)) if rows else ""


def _evaluations(evals: Sequence[Line]) -> str:
    rows: list[list[str | Cell]] = []
    for line in evals[-_MOST:]:
        figures = [number(line.get(key)) for key in ("loss", "perplexity")]
        took = number(line.get("seconds"))
        cells = [num("" if v is None else f"{v:.4g}") for v in figures]
        rows.append([num(_step(line)), *cells, num("" if took is None else format_seconds(took))])
    return details(_many(len(evals), "evaluation"), table(["step", "loss", "perplexity", "time"], rows)) if rows else ""


def _many(count: int, name: str) -> str:
    left = f", the last {_MOST} shown" if count > _MOST else ""
    return f"{count:,} {name}{'s' if count > 1 else ''}{left}"


def _step(line: Line) -> str:
    return str(line.get("step", "?"))
