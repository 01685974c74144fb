# SPDX-License-Identifier: Apache-2.0
"""`plan --html`: a page of what fits where, with sliders for length and batch. One file in the style of the report."""

from __future__ import annotations

from collections.abc import Sequence

from harness.check.fit_table import FitCell, FitTable
from harness.check.plan_report import PlanReport
from harness.plan.plan_json import plan_json
from harness.views.plan_fit_table import cell_text, describe_cell, describe_hosts
from harness.views.plan_lines import name_of_choice
from harness.views.plan_numbers import format_size, format_time_range
from harness.views.plan_plot import render_memory_svg
from harness.views.plan_verdict import format_verdict_line
from harness.views.report.html_elements import escape, format_code, render_share_bar
from harness.views.report.page import render_document

_CLASSES = {"fits": "good", "not certain": "odd", "disks": "odd", "host": "odd", "no": "bad"}
_WORDS = {
    "fits": "fits",
    "not certain": "not certain",
    "disks": "fits with so much of disks",
    "host": "fits with so much host memory",
    "no": "too small",
}


def render_plan_page(report: PlanReport, tables: Sequence[FitTable]) -> str:
    """The page of a plan. `tables`: the first is that of the run itself, the others have other lengths and batches."""
    plan = report.plan
    lengths = sorted({table.max_length for table in tables})
    batches = sorted({table.tokens_per_step for table in tables})
    first = tables[0]
    sections = [
        f"<header><h1>{escape(plan.run.name)}</h1><p>{escape(_subtitle(report))}</p></header>",
        f'<section class="card spaced"><p>{format_code(format_verdict_line(report))}</p></section>',
        "<h2>What fits where</h2>",
        f'<section class="card">{_render_slider("length", "tokens a sequence", lengths, first.max_length)}'
        f"{_render_slider('batch', 'tokens a step', batches, first.tokens_per_step)}"
        f'<div class="scroll" tabindex="0">{_render_table(first)}</div>{_render_legend()}'
        f'<p class="quiet" id="detail" aria-live="polite">Choose a cell for its settings.</p>'
        f'<p class="quiet">{format_code(describe_hosts(first))}</p>{_render_refusals(first)}</section>',
        "<h2>Memory, by alternative</h2>",
        f'<section class="card"><div class="scroll" tabindex="0"><div class="wide">'
        f"{render_memory_svg(plan_json(plan))}</div></div></section>",
        _render_step(report),
    ]
    data = {
        "lengths": lengths,
        "batches": batches,
        "cells": {f"{table.max_length},{table.tokens_per_step}": _cells(table) for table in tables},
    }
    return render_document(f"{plan.run.name} - harness plan", sections, [data], [], ("plan.js",))


def _subtitle(report: PlanReport) -> str:
    plan = report.plan
    kind = plan.device.name if plan.device else "accelerators"
    world = plan.run.parallel_dims.world_size or 0
    setting = name_of_choice(plan.settings) if plan.settings else plan.title
    return f"{world:,} x {kind}: {setting}"


def _render_slider(name: str, unit: str, values: Sequence[int], value: int) -> str:
    at = values.index(value)
    return (
        f'<label class="slider">{escape(unit)}: <output id="{name}-value">{value:,}</output>'
        f'<input type="range" id="{name}" min="0" max="{len(values) - 1}" step="1" value="{at}"></label>'
    )


def _counts(table: FitTable) -> list[int]:
    return sorted({cell.gpus for row in table.rows.values() for cell in row})


def _render_table(table: FitTable) -> str:
    """Every cell is a button with its class; the script changes text, class and title of each."""
    heads = "".join(f'<th scope=col class="num">{gpus:,}</th>' for gpus in _counts(table))
    lines = []
    for name, row in table.rows.items():
        cells = {cell.gpus: cell for cell in row}
        boxes = "".join(_render_cell(f"{name},{gpus}", cells.get(gpus)) for gpus in _counts(table))
        lines.append(f"<tr><th scope=row>{escape(name)}</th>{boxes}</tr>")
    head = f"<thead><tr><th scope=col>{escape(table.gpu)}</th>{heads}</tr></thead>"
    return f'<table class="fits">{head}<tbody>{"".join(lines)}</tbody></table>'


def _render_cell(key: str, cell: FitCell | None) -> str:
    css, text, title = _describe(cell)
    data = f'data-key="{escape(key)}" data-title="{escape(title)}"'
    return f'<td class="num"><button type="button" class="{css}" {data}>{escape(text)}</button></td>'


def _describe(cell: FitCell | None) -> tuple[str, str, str]:
    if cell is None:
        return "none", "-", "not tried"
    return _CLASSES[cell.state], cell_text(cell), f"{_WORDS[cell.state]}: {describe_cell(cell)}"


def _cells(table: FitTable) -> dict[str, tuple[str, str, str]]:
    return {f"{name},{cell.gpus}": _describe(cell) for name, row in table.rows.items() for cell in row}


def _render_legend() -> str:
    texts = (
        ("good", "fits, with its step"),
        ("odd", "not certain (~), or with more RAM or disks"),
        ("bad", "too small"),
    )
    keys = "".join(f'<span class="fit {css}">{escape(text)}</span>' for css, text in texts)
    return f'<p class="legend">{keys}</p>'


def _render_refusals(table: FitTable) -> str:
    lines = (
        f"<li>{escape(name)}: <code>{escape(each.gate)}</code>, {format_code(each.message)}</li>"
        for name, each in table.refused.items()
    )
    items = "".join(lines)
    return f'<p class="quiet"><code>harness launch</code> refuses:</p><ul class="quiet">{items}</ul>' if items else ""


def _render_step(report: PlanReport) -> str:
    """The parts of a step, those that hide behind others included, and the memory of the run beside what there is."""
    plan = report.plan
    if plan.time is None or plan.memory is None:
        return ""
    parts = [(part.name, part.seconds, format_time_range((part.seconds,) * 2)) for part in plan.time.parts]
    words = f"{format_time_range(plan.time.range)} a step, limited by {plan.time.bottleneck}; parts overlap"
    peak = f"GPU {format_size(plan.memory.gpu_peak)}, host {format_size(plan.memory.host_peak)}"
    line = f'<p class="quiet">{escape(words)}. At its peak: {escape(peak)}.</p>'
    return f'<h2>Time line of a step</h2><section class="card">{render_share_bar(parts)}{line}</section>'
