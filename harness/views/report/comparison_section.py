# SPDX-License-Identifier: Apache-2.0
"""Two or more runs side by side: one row per figure, one row per key of the spec that differs. Reads records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.run_records.run_record import RunRecord
from harness.run_records.summary import RunSummary, summarise_run
from harness.units import format_bytes, format_count, format_seconds
from harness.views.report.header import render_badge
from harness.views.report.html_elements import Cell, escape, number_cell, render_details, render_table

_MAX_KEYS = 100


def names_of(records: Sequence[RunRecord]) -> list[str]:
    """A letter and the folder's name: short enough for a legend, and never twice the same."""
    return [f"{_letter_of(i)} {record.name}" for i, record in enumerate(records)]


def _letter_of(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else str(index + 1)


def render_comparison(records: Sequence[RunRecord]) -> str:
    """The table of figures and the table of differences."""
    letters = [_letter_of(i) for i in range(len(records))]
    named = "".join(
        f"<li><b>{letter}</b> {escape(record.name)} {render_badge(record.state)}</li>"
        for letter, record in zip(letters, records, strict=True)
    )
    figures = f'<div class="card scroll" tabindex="0">{_render_figures(records, letters)}</div>'
    return f'<ul class="runs">{named}</ul><h2>Figures</h2>{figures}{_render_differences(records, letters)}'


def _render_figures(records: Sequence[RunRecord], letters: Sequence[str]) -> str:
    summaries = [summarise_run(record) for record in records]
    rows: list[list[str | Cell]] = []
    for name, show in _FIGURE_ROWS:
        cells = [show(s) for s in summaries]
        if any(cells):
            rows.append([name, *(number_cell(cell) for cell in cells)])
    peaks = [
        max((v for _, v in r.points("step", "memory_gpu_peak_bytes", "memory_host_bytes")), default=None)
        for r in records
    ]
    if any(peaks):
        rows.append(["peak memory of rank 0", *(number_cell(format_bytes(p) if p else "") for p in peaks)])
    return render_table(["", *letters], rows)


def _format_optional(show: Callable[[float], str], value: float | None) -> str:
    return "" if value is None else show(value)


_FIGURE_ROWS: tuple[tuple[str, Callable[[RunSummary], str]], ...] = (
    ("steps", lambda s: f"{s.step:,}" + (f" of {s.steps:,}" if s.steps else "")),
    ("training loss", lambda s: _format_optional("{:.4f}".format, s.loss)),
    ("held-out loss", lambda s: _format_optional("{:.4f}".format, s.eval_loss)),
    ("best held-out loss", lambda s: f"{s.best_eval[1]:.4f} at {s.best_eval[0]:,}" if s.best_eval else ""),
    ("tokens/s", lambda s: _format_optional("{:,.0f}".format, s.tokens_per_second or None)),
    ("MFU", lambda s: _format_optional("{:.1%}".format, s.mfu)),
    ("a step", lambda s: _format_optional(format_seconds, s.step_seconds)),
    ("tokens", lambda s: _format_optional(format_count, s.tokens or None)),
    ("time", lambda s: _format_optional(format_seconds, s.seconds)),
    ("attempts", lambda s: str(s.attempts) if s.attempts > 1 else ""),
)


def _render_differences(records: Sequence[RunRecord], letters: Sequence[str]) -> str:
    flat = [_flatten(r.run.spec.model_dump(mode="json")) if r.run is not None else {} for r in records]
    if sum(bool(f) for f in flat) < 2:
        return ""
    keys = sorted({key for f in flat for key in f})
    rows: list[list[str | Cell]] = []
    for key in keys:
        values = [f.get(key, "") if f else "?" for f in flat]
        if len(set(values)) > 1:
            rows.append(
                [Cell(f"<code>{escape(key)}</code>"), *(Cell(f"<code>{escape(v[:200])}</code>") for v in values)]
            )
    if not rows:
        return '<p class="card spaced quiet">The specs of these runs are equal.</p>'
    title = f"{len(rows)} key{'s' if len(rows) > 1 else ''} of the specs differ"
    body = render_table(["key", *letters], rows[:_MAX_KEYS])
    return render_details(title, body).replace("<details ", "<details open ", 1)


def _flatten(spec: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in spec.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping):
            flat |= _flatten(value, name)
        else:
            flat[name] = json.dumps(value)
    return flat
