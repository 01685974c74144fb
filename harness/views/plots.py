"""Line charts and bars as inline SVG and HTML: no script, no library, colours from the page's own style sheet.

Small on purpose: a plotting library would bring numpy into the light installation and fixed colours into a page that
follows the reader's light or dark setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

Point = tuple[float, float]
Kind = Literal["line", "dots", "rule"]
_WIDTH, _HEIGHT = 480, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 20, 10, 36
_MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Series:
    """One thing in a chart. A `rule` is a level line at the y of its last point; `colour` is a class of the CSS."""

    name: str
    points: Sequence[Point]
    kind: Kind = "line"
    colour: int = 1


@dataclass(frozen=True, slots=True)
class _Axes:
    """Data to picture coordinates."""

    low: Point
    high: Point

    def x(self, value: float) -> float:
        return _LEFT + (value - self.low[0]) / (self.high[0] - self.low[0]) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _TOP + (self.high[1] - value) / (self.high[1] - self.low[1]) * (_HEIGHT - _TOP - _BOTTOM)


def line_chart(title: str, series: Sequence[Series], x_label: str = "step", zero: bool = False) -> str:
    """A figure with a legend; a sentence instead of a picture when there is nothing to draw. `zero`: y starts at 0."""
    series = [s for s in series if s.points]
    head = f"<h3>{escape(title)}</h3>{_legend(series) if len(series) > 1 else ''}"
    drawn = [point for s in series if s.kind != "rule" for point in s.points]
    if not drawn:
        return f'<figure class="card">{head}<p class="quiet">nothing was recorded</p></figure>'
    axes = _axes([*drawn, *((drawn[0][0], s.points[-1][1]) for s in series)], zero)
    body = "".join([_grid(axes, x_label), *(_draw(s, axes) for s in series)])
    picture = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">{body}</svg>'
    return f'<figure class="card">{head}{picture}</figure>'


def _legend(series: Sequence[Series]) -> str:
    items = (f'<span class="key c{s.colour} {s.kind}">{escape(s.name)}</span>' for s in series)
    return f'<p class="legend">{"".join(items)}</p>'


def _axes(points: Sequence[Point], zero: bool) -> _Axes:
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    low, high = min(ys), max(ys)
    low = 0.0 if zero and low >= 0 else low
    spread = (high - low) or abs(high) or 1.0
    low = low if zero and low == 0 else low - 0.05 * spread
    return _Axes((min(xs), low), (max(xs) if max(xs) > min(xs) else min(xs) + 1, high + 0.05 * spread))


def _draw(series: Series, axes: _Axes) -> str:
    if series.kind == "rule":
        y = axes.y(series.points[-1][1])
        return f'<line class="rule c{series.colour}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    if series.kind == "dots":
        return "".join(
            f'<circle class="dot c{series.colour}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="4">'
            f"<title>{escape(series.name)}, step {x:g}: {y:.4g}</title></circle>"
            for x, y in series.points
        )
    points = thinned(series.points)
    if len(points) == 1:
        return _draw(Series(series.name, points, "dots", series.colour), axes)
    path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
    return f'<polyline class="line c{series.colour}" points="{path}"/>'


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most some hundred points, each the mean of its neighbours: more cannot be seen."""
    size = -(-len(points) // _MOST_POINTS)
    chunks = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in c) / len(c), sum(y for _, y in c) / len(c)) for c in chunks]


def _grid(axes: _Axes, x_label: str) -> str:
    parts = []
    for value in ticks(axes.low[1], axes.high[1], 5):
        y = axes.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_label(value)}</text>')
    for value in ticks(axes.low[0], axes.high[0], 6):
        x = axes.x(value)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_label(value)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` round values between low and high."""
    raw = (high - low) / wanted
    if raw <= 0 or not math.isfinite(raw):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5) if m * power >= raw), 10 * power)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + i) * step, 12) for i in range(count)]


def _label(value: float) -> str:
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.4g}{suffix}"
    return "0" if abs(value) < 1e-15 else f"{value:.4g}"


def share_bar(parts: Sequence[tuple[str, float, str]]) -> str:
    """One bar cut into shares: (name, value, text of the value)."""
    total = sum(value for _, value, _ in parts) or 1.0
    blocks, keys = [], []
    for index, (name, value, text) in enumerate(parts, start=1):
        share = 100 * value / total
        blocks.append(
            f'<span class="c{index}" style="width:{share:.2f}%" title="{escape(f"{name} {text}", quote=True)}"></span>'
        )
        keys.append(f'<span class="key c{index}">{escape(name)} {escape(text)} ({share:.0f}%)</span>')
    return f'<div class="bar">{"".join(blocks)}</div><p class="legend">{"".join(keys)}</p>'


def pair_bars(rows: Sequence[tuple[str, float, str]], colours: Sequence[int] = ()) -> str:
    """Bars on one scale, one below the other: (name, value, text of the value)."""
    most = max((value for _, value, _ in rows), default=0) or 1.0
    lines = []
    for index, (name, value, text) in enumerate(rows):
        colour = colours[index] if index < len(colours) else 1
        fill = f'<span class="c{colour}" style="width:{100 * value / most:.2f}%"></span>'
        lines.append(f'<dt>{escape(name)}</dt><dd><div class="bar">{fill}</div><b>{escape(text)}</b></dd>')
    return f'<dl class="bars">{"".join(lines)}</dl>'
