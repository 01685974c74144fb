# SPDX-License-Identifier: Apache-2.0
"""The elements of the report: tables, folded blocks, code in text, bars. Every input is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as _escaped

__all__ = ["Cell", "escape", "format_code", "render_details", "render_table", "truncate"]
_CONTROLS = {c: "\ufffd" for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\t\n\r"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is not plain text: `css` is its class, `html` its content, already escaped."""

    html: str
    css: str = ""


def escape(text: str, quote: bool = True) -> str:
    """Text as HTML, with a sign for each control character, so that printing the file steers no terminal."""
    return _escaped(text.translate(_CONTROLS), quote)


def number_cell(text: str) -> Cell:
    """A right-aligned figure."""
    return Cell(escape(text), "num")


def note_cell(text: str) -> Cell:
    """A text next to a figure."""
    return Cell(format_code(text), "why")


def render_table(head: Sequence[str], rows: Iterable[Sequence[str | Cell]], caption: str = "", marked: int = -1) -> str:
    """A table; a column is right-aligned if its first cell is. Row `marked` is highlighted."""
    rows = list(rows)
    first = rows[0] if rows else ()
    css = [cell.css if isinstance(cell, Cell) and cell.css == "num" else "" for cell in first]
    css += [""] * (len(head) - len(css))
    heads = "".join(f"<th scope=col{_class_attribute(c)}>{escape(h)}</th>" for h, c in zip(head, css, strict=False))
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(_render_cell(cell) for cell in row)
        lines.append(f"<tr{' class=chosen' if index == marked else ''}>{cells}</tr>")
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _render_cell(cell: str | Cell) -> str:
    if isinstance(cell, Cell):
        return f"<td{_class_attribute(cell.css)}>{cell.html}</td>"
    return f"<td>{escape(cell)}</td>"


def _class_attribute(name: str) -> str:
    return f' class="{name}"' if name else ""


def render_details(title: str, body: str) -> str:
    """A block that is folded at first."""
    inner = f'<div class="scroll" tabindex="0">{body}</div>'
    return f'<details class="card"><summary>{escape(title)}</summary>{inner}</details>'


def format_code(text: str) -> str:
    """Text with the parts between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 and i < len(parts) - 1 else part for i, part in enumerate(parts))


def truncate(text: str, most: int = 100_000) -> str:
    """The first `most` characters, and a note about the rest."""
    return text if len(text) <= most else text[:most] + f"\n... {len(text) - most:,} more characters"


# Bars as HTML: shares of one whole, and sizes below each other. Colours are those of the page's own style sheet.
#
# Curves are drawn by uPlot (`harness.views.report.charts`); for a bar a style sheet is enough.


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
