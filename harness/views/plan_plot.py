# SPDX-License-Identifier: Apache-2.0
"""Memory of a plan by alternative as SVG: stacked bars of GPU, host and NVMe, with the available memory as a line.

No script and no library; colours are in the file, for light and dark pages. Reads `plan.json`; counts nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from harness.units import format_bytes
from harness.views.style import escape_unprintable

_WIDTH, _LABEL_WIDTH, _BAR_HEIGHT, _GAP, _LEGEND_HEIGHT = 860, 250, 16, 8, 56
_PLOT_WIDTH = _WIDTH - _LABEL_WIDTH - 90
_COLOURS = {
    "parameters": "#4c78a8",
    "gradients": "#72b7b2",
    "masters": "#54a24b",
    "optimizer states": "#eeca3b",
    "activations": "#f58518",
    "buffers and temporaries": "#b279a2",
    "assumed": "#9d9da3",
}
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600}.q{fill:#666}"
    ".have{stroke:#c33;stroke-dasharray:4 3}.limit{fill:#c33}.cut path{stroke:#fff;stroke-width:2;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.q{fill:#999}}"
)
_TIERS = (("gpu", "{device} per rank"), ("host", "host memory per node"), ("nvme", "NVMe per node"))


def render_memory_svg(plan: Mapping[str, Any]) -> str:
    """The chart of a plan's JSON: one group of bars per tier, one bar per alternative, the run itself marked.

    Nothing where the plan has no alternatives, or was written before they had kinds.
    """
    rungs = [rung for rung in plan.get("alternatives") or [] if isinstance(rung, dict) and "gpu_by_kind" in rung]
    if not rungs:
        return ""
    name = escape(escape_unprintable(f"Memory of {plan.get('name', 'the run')} by alternative"), quote=True)
    heading = f'<text class="t" x="8" y="44">{name}; a bar with two strokes is cut</text>'
    parts, top = [_render_legend(), heading], _LEGEND_HEIGHT + 16
    for tier, title in _TIERS:
        words = title.format(device="device" if plan.get("device") == "cpu" else "GPU")
        block, height = _render_tier(tier, words, plan.get(f"{tier}_capacity_bytes"), rungs, top)
        parts.append(block)
        top += height
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" role="img"'
    return f'{head} aria-label="{name}"><style>{_STYLE}</style>{"".join(parts)}</svg>\n'


def _render_legend() -> str:
    parts, x = [], 8
    for name, colour in _COLOURS.items():
        parts.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="20">{name}</text>')
        x += 30 + 7 * len(name)
    return "".join(parts)


def _render_tier(
    tier: str, name: str, have: int | None, rungs: Sequence[Mapping[str, Any]], top: int
) -> tuple[str, int]:
    shares = [rung.get(f"{tier}_by_kind", {}) for rung in rungs]
    totals = [sum(share.values()) for share in shares]
    if not any(totals):
        return "", 0
    # what is far too large is cut off, or nothing else could be seen
    scale = min(max(totals), 2.5 * have) if have else max(totals)
    title = name + (f" ({format_bytes(have)})" if have else "")
    parts = [f'<text class="t" x="8" y="{top + 4}">{escape(title)}</text>']
    y = top + 14
    for rung, share, total in zip(rungs, shares, totals, strict=True):
        mark, css = ("&#9656; ", ' class="t"') if rung.get("chosen") else ("", "")
        label = escape(escape_unprintable(_shorten_title(str(rung.get("title", "")))))
        end = _LABEL_WIDTH + min(total / scale, 1.0) * _PLOT_WIDTH
        parts.append(f'<text{css} x="{_LABEL_WIDTH - 8}" y="{y + 12}" text-anchor="end">{mark}{label}</text>')
        parts.append(_render_bar(share, scale, y))
        parts.append(f'<text class="q" x="{end + 5:.1f}" y="{y + 12}">{format_bytes(total) if total else "-"}</text>')
        parts += [_render_cut(end, y, total)] if total > scale else []
        y += _BAR_HEIGHT + _GAP
    if have and have <= scale:
        x = _LABEL_WIDTH + have / scale * _PLOT_WIDTH
        parts.append(f'<line class="have" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 10}" y2="{y - 4}"/>')
        parts.append(f'<text class="limit" x="{x + 3:.1f}" y="{top + 8}">limit {format_bytes(have)}</text>')
    return "".join(parts), y - top + 22


def _render_cut(end: float, y: int, total: int) -> str:
    """Two strokes through the end of a bar that is longer than the axis."""
    strokes = "".join(f"M{end - back:.1f} {y + _BAR_HEIGHT + 2}l6 {-_BAR_HEIGHT - 4}" for back in (16, 11))
    return f'<g class="cut"><title>cut: {format_bytes(total)}</title><path d="{strokes}"/></g>'


def _render_bar(share: Mapping[str, int], scale: float, y: int) -> str:
    parts, x = [], float(_LABEL_WIDTH)
    for name, colour in _COLOURS.items():
        size = share.get(name, 0)
        width = min(size / scale * _PLOT_WIDTH, _LABEL_WIDTH + _PLOT_WIDTH - x)
        if width <= 0:
            continue
        tip = escape(f"{name} {format_bytes(size)}")
        rect = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT}" fill="{colour}"/>'
        parts.append(f"<g><title>{tip}</title>{rect}</g>")
        x += width
    return "".join(parts)


def _shorten_title(title: str) -> str:
    text = title.replace("optimizer and parameters on", "all on").replace("optimizer on", "opt. on")
    return text if len(text) <= 38 else text[:35] + "..."
