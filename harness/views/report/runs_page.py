# SPDX-License-Identifier: Apache-2.0
"""The page of all runs: a table that sorts and filters, and the curves of the runs that are ticked. One file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from harness.file_io import write_output_file
from harness.run_records.run_list import list_run_summaries
from harness.run_records.run_record import RunRecord, read_run_record
from harness.run_records.summary import RunSummary, summarise_run
from harness.secret_text import hide_passwords
from harness.units import format_count
from harness.views.report.charts import render_charts
from harness.views.report.header import format_time, render_badge
from harness.views.report.html_elements import escape
from harness.views.report.page import MAX_BYTES, TOOLS, render_document
from harness.views.report.training_charts import axes_of, build_comparison_charts

_MAX_POINTS = 300
_FIRST_TICKED = 3
_Cell = tuple[str, float | str | None]
"""The text of a cell, and what it is sorted by; None: behind all others."""


def write_runs_page(folder: Path, output: Path) -> Path:
    """Write the page of the runs of a folder, and return its path. Raises OSError, and UserError without a folder."""
    runs = list_run_summaries(folder)
    records = [read_run_record(run.folder) for run in runs]
    place = output.resolve().parent
    points = _MAX_POINTS
    while len((page := _render_page(folder, runs, records, place, points)).encode()) > MAX_BYTES and points > 10:
        points //= 2
    write_output_file(output, hide_passwords(page))
    return output


def _render_page(
    folder: Path, runs: Sequence[RunSummary], records: Sequence[RunRecord], place: Path, points: int
) -> str:
    whole = [record.training for record in records]
    charts = build_comparison_charts(whole, [record.name for record in records])[:3]  # both losses, tokens/s
    curves, data = render_charts(charts, points, brief=True)
    rows = "".join(
        _render_row(number, run, record, place) for number, (run, record) in enumerate(zip(runs, records, strict=True))
    )
    heads = "".join(f'<th scope="col"><button type="button">{name}</button></th>' for name in _COLUMNS)
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    table = (
        f'<p class="tools"><label>filter <input type="search" id="filter" placeholder="name, state or tag"></label>'
        f'<span id="count" aria-live="polite">{count}</span></p><div class="card scroll" tabindex="0">'
        f'<table class="all-runs"><thead><tr><th scope="col">compare</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    header = f"<header><h1>Runs</h1><p>{escape(f'{count} in {folder}')}</p></header>"
    body = [header, table, f'<h2>Curves of the ticked runs</h2>{TOOLS}<div class="grid2">{curves}</div>']
    return render_document(
        "Runs - harness", body, data, [axes_of(record) for record in whole], ("report.js", "runs.js")
    )


_COLUMNS = (
    "run", "state", "step", "loss", "held-out", "best held-out", "tokens/s", "MFU", "started", "attempts",
    "tags", "note",
)  # fmt: skip


def _render_row(number: int, run: RunSummary, record: RunRecord, place: Path) -> str:
    best = summarise_run(record).best_eval  # of the whole file: a list reads its ends alone
    cells: list[_Cell] = [
        (f"{run.step:,}" + (f" of {run.steps:,}" if run.steps else ""), run.step),
        _figure(run.loss, "{:.4f}"),
        _figure(run.eval_loss, "{:.4f}"),
        (f"{best[1]:.4f} at {best[0]:,}" if best else "", best[1] if best else None),
        (format_count(run.tokens_per_second) if run.tokens_per_second else "", run.tokens_per_second),
        _figure(run.mfu, "{:.1%}"),
        ("" if run.training_started is None else format_time(run.training_started), run.training_started),
        (str(run.attempts), run.attempts),
    ]
    name = escape(run.name)
    report = run.folder / "report.html"
    if report.is_file():
        name = f'<a href="{escape(quote(os.path.relpath(report.resolve(), place)))}">{name}</a>'
    branch = f"branch of {escape(run.branch_of)}" if run.branch_of else ""
    tags = "".join(f'<span class="tag">{escape(tag)}</span>' for tag in run.tags)
    ticked = " checked" if number < _FIRST_TICKED else ""
    box = f'<input type="checkbox" value="{number}" aria-label="compare {escape(run.name)}"{ticked}>'
    figures = "".join(f'<td class="num" data-by="{"" if by is None else by}">{text}</td>' for text, by in cells)
    return (
        f'<tr{" class=branch" if branch else ""}><td>{box}</td><td title="{branch}">{name}</td>'
        f"<td>{render_badge(run.state)}</td>{figures}<td>{tags}</td><td class=note>{escape(run.note)}</td></tr>"
    )


def _figure(value: float | None, form: str) -> _Cell:
    return ("" if value is None else form.format(value), value)
