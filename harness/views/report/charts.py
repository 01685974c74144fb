# SPDX-License-Identifier: Apache-2.0
"""Charts of the report: data for uPlot (in `views/assets`) as JSON, with a sentence and a table of the same numbers.

The sentence and the table serve readers without script, screen readers and print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.views.report.html_elements import Cell, escape, number_cell, render_table

Point = tuple[float, float]
SeriesKind = Literal["line", "thin", "dots", "rule", "area"]
_MAX_ROWS = 8


@dataclass(frozen=True, slots=True)
class Series:
    """One thing in a chart. `thin` is a line behind others, a `rule` a level line at the y of its last point, `area`
    lies on those before it. `colour` is a variable of the style sheet, `dash` the style of the line, so that nobody
    needs the colour.
    """

    name: str
    points: Sequence[Point]
    kind: SeriesKind = "line"
    colour: int = 1
    dash: int = 0
    run: int | None = None
    """The number of its run on the page, for the other axes; None: that of the chart."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a step."""

    x: float
    kind: Literal["save", "restart"]


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure. `unit` stands behind its values, `zero` starts the y axis there, `note` follows the sentence."""

    title: str
    series: Sequence[Series]
    unit: str = ""
    zero: bool = False
    marks: Sequence[Mark] = field(default_factory=tuple)
    note: str = ""
    x_label: str = "step"


def render_charts(
    charts: Sequence[Chart], points: int, first: int = 0, run: int = 0, *, brief: bool = False
) -> tuple[str, list[dict[str, Any]]]:
    """The HTML of charts, and for the script what to draw in it. `points` is how many a series may have, `first` the
    number of the first, `run` that of the run on the page. `brief`: without the sentence and the numbers.
    """
    body, data = [], []
    for index, chart in enumerate(charts, start=first):
        series = [s for s in chart.series if s.points]
        curves = [s for s in series if s.kind != "rule"]
        if not curves:
            body.append(f'<figure class="card"><h3>{escape(chart.title)}</h3><p class="quiet">no data</p></figure>')
            continue
        body.append(_render_figure(chart, series, f"chart{index}", brief=brief))
        data.append({"id": f"chart{index}", **_chart_as_dict(chart, series, points, run)})
    return "".join(body), data


def _render_figure(chart: Chart, series: Sequence[Series], name: str, *, brief: bool) -> str:
    head = f'<h3 id="{name}-title">{escape(chart.title)}</h3>{_render_legend(series, chart.marks)}'
    if brief:
        plot = f'<div class="plot" id="{name}" role="img" aria-labelledby="{name}-title"></div>'
        return f'<figure class="card">{head}{plot}</figure>'
    caption = " ".join(part for part in (describe_series(series, chart.unit, chart.x_label), chart.note) if part)
    return (
        f'<figure class="card" aria-labelledby="{name}-title" aria-describedby="{name}-words">'
        f'{head}<div class="plot" id="{name}" role="img" aria-labelledby="{name}-title {name}-words"></div>'
        f'<figcaption id="{name}-words">{escape(caption)}</figcaption>'
        f'<details class="numbers"><summary>numbers</summary><div class="scroll" tabindex="0">'
        f"{_render_numbers(chart, series)}</div></details></figure>"
    )


def _render_legend(series: Sequence[Series], marks: Sequence[Mark]) -> str:
    """A key for each series with a place for its value under the pointer."""
    keys = [
        f'<span class="key c{s.colour} {s.kind} d{s.dash}"><i></i>{escape(s.name)} <output></output></span>'
        for s in series
    ]
    kinds = {mark.kind for mark in marks}
    keys += [f'<span class="key mark {k}"><i></i>{w}</span>' for k, w in _MARK_LABELS if k in kinds]
    return f'<p class="legend">{"".join(keys)}</p>'


_MARK_LABELS = (("save", "checkpoint"), ("restart", "restart or resume"))


def describe_series(series: Sequence[Series], unit: str, x_label: str = "step") -> str:
    """The start, the end and the extremes of each series."""
    parts = []
    for s in series:
        if s.kind in ("thin", "area"):
            continue
        values = [y for _, y in s.points]
        if s.kind == "rule" or len(values) == 1:
            parts.append(f"{s.name} {format_value(values[-1], unit)}")
            continue
        low, high = format_value(min(values), unit), format_value(max(values), unit)
        if low == high:
            parts.append(f"{s.name} steady at {low}")
            continue
        first, last = format_value(values[0], unit), format_value(values[-1], unit)
        ends = f"{first} at {x_label} {s.points[0][0]:g}, {last} at {s.points[-1][0]:g}"
        parts.append(f"{s.name} {ends}; between {format_value(min(values))} and {high}")
    text = ". ".join(part[:1].upper() + part[1:] for part in parts)
    return text + "." if text else ""


def format_value(number: float, unit: str = "") -> str:
    """A figure of a chart: four digits, a letter for thousands, its unit."""
    text = f"{number:.4g}"
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            text = f"{number / (1e3 if suffix == 'k' else limit):.4g}{suffix}"
            break
    return text + ("%" if unit == "%" else f" {unit}" if unit else "")


def _render_numbers(chart: Chart, series: Sequence[Series]) -> str:
    """A few of the points, evenly spread; an area's own height, not where it ends."""
    longest = max((s for s in series if s.kind != "rule"), key=lambda s: len(s.points)).points
    picked = sorted({round(i * (len(longest) - 1) / (_MAX_ROWS - 1)) for i in range(_MAX_ROWS)})
    curves = [s for s in series if s.kind != "rule"]
    at = [dict(s.points) for s in curves]
    rows: list[list[str | Cell]] = []
    for x in (longest[i][0] for i in picked):
        rows.append(
            [
                number_cell(f"{x:g}"),
                *(
                    number_cell(format_value(points[x], chart.unit)) if x in points else Cell("", "num")
                    for points in at
                ),
            ]
        )
    return render_table(
        [chart.x_label, *(s.name for s in curves)], rows, f"{chart.title}, {len(rows)} of {len(longest)} points"
    )


def _chart_as_dict(chart: Chart, series: Sequence[Series], points: int, run: int) -> dict[str, Any]:
    stacked: list[Series] = []
    for s in series:
        stacked.append(_stack_on(stacked[-1], s) if s.kind == "area" and stacked and stacked[-1].kind == "area" else s)
    return {
        "title": chart.title,
        "unit": chart.unit,
        "zero": chart.zero,
        "x": chart.x_label,
        "marks": [{"x": mark.x, "kind": mark.kind} for mark in chart.marks[:500]],
        "series": [_series_as_dict(s, points, stacked, run) for s in stacked],
    }


def _stack_on(below: Series, s: Series) -> Series:
    """An area on top of another; both have the same x."""
    heights = dict(below.points)
    return Series(s.name, [(x, y + heights.get(x, 0.0)) for x, y in s.points], "area", s.colour, s.dash, s.run)


def _series_as_dict(s: Series, points: int, stacked: Sequence[Series], run: int) -> dict[str, Any]:
    areas = sum(other.kind == "area" for other in stacked)
    thinned = pick_evenly(s.points, points) if s.kind == "area" and areas else thin_points(s.points, points)
    thinned = [s.points[-1]] if s.kind == "rule" else thinned
    return {
        "name": s.name,
        "kind": s.kind,
        "colour": s.colour,
        "dash": s.dash,
        "run": run if s.run is None else s.run,
        "xs": [_round_short(x) for x, _ in thinned],
        "ys": [_round_short(y) for _, y in thinned],
    }


def _round_short(number: float) -> float:
    short = float(f"{number:.6g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def thin_points(points: Sequence[Point], most: int) -> Sequence[Point]:
    """At most about `most` points: the lowest and the highest of each stretch, so that no spike is lost."""
    if len(points) <= most:
        return points
    size = -(-2 * len(points) // most)
    thinned: list[Point] = []
    for start in range(0, len(points), size):
        chunk = points[start : start + size]
        low, high = min(chunk, key=lambda p: p[1]), max(chunk, key=lambda p: p[1])
        thinned += [low] if low is high else sorted((low, high))
    return thinned


def pick_evenly(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Evenly many of them, the same x of each series that has the same."""
    size = -(-len(points) // most)
    return points[::size] if size > 1 else points


def smooth_points(points: Sequence[Point], window: int) -> list[Point]:
    """The mean of `window` points around each."""
    sums, total = [0.0], 0.0
    for _, y in points:
        total += y
        sums.append(total)
    half, last = window // 2, len(points)
    smoothed = []
    for i, (x, _) in enumerate(points):
        low, high = max(0, i - half), min(last, i + half + 1)
        smoothed.append((x, (sums[high] - sums[low]) / (high - low)))
    return smoothed


def average_points(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` points, each the mean of a stretch at its last x."""
    size = -(-len(points) // most) or 1
    chunks = (points[i : i + size] for i in range(0, len(points), size))
    return [(chunk[-1][0], sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]
