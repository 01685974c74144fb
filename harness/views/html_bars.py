# SPDX-License-Identifier: Apache-2.0
"""Bars as HTML: shares of one whole, and sizes below each other. Colours are those of the page's own style sheet.

Curves are drawn by uPlot (`harness.views.report.charts`); for a bar a style sheet is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def render_share_bar(parts: Sequence[tuple[str, float, str]]) -> str:
    """One bar cut into shares: (name, value, text of the value)."""
    total = sum(value for _, value, _ in parts) or 1.0
    blocks, keys = [], []
    for index, (name, value, text) in enumerate(parts, start=1):
        share = 100 * value / total
        blocks.append(
            f'<span class="c{index}" style="width:{share:.2f}%" title="{escape(f"{name} {text}", quote=True)}"></span>'
        )
        keys.append(f'<span class="key share c{index}"><i></i>{escape(name)} {escape(text)} ({share:.0f}%)</span>')
    return f'<div class="bar">{"".join(blocks)}</div><p class="legend">{"".join(keys)}</p>'


def render_pair_bars(rows: Sequence[tuple[str, float, str]], colours: Sequence[int] = ()) -> str:
    """Bars on one scale, one below the other: (name, value, text of the value)."""
    most = max((value for _, value, _ in rows), default=0) or 1.0
    lines = []
    for index, (name, value, text) in enumerate(rows):
        colour = colours[index] if index < len(colours) else 1
        fill = f'<span class="c{colour}" style="width:{100 * value / most:.2f}%"></span>'
        lines.append(f'<dt>{escape(name)}</dt><dd><div class="bar">{fill}</div><b>{escape(text)}</b></dd>')
    return f'<dl class="bars">{"".join(lines)}</dl>'
