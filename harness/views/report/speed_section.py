# SPDX-License-Identifier: Apache-2.0
"""The time of the median step, part by part, and between the steps. Reads a record, draws bars."""

from __future__ import annotations

from statistics import median

from harness.run_records.run_record import RunRecord
from harness.run_records.summary import median_or_none
from harness.units import format_seconds
from harness.views.html_bars import render_share_bar
from harness.views.report.html_elements import escape
from harness.views.report.training_charts import STEP_PARTS


def render_median_step(record: RunRecord) -> str:
    """The median step, cut into its parts, with communication and swapping, which are inside of those."""
    totals = record.values("seconds")
    if not totals:
        return ""
    whole = median(totals)
    parts = []
    for name in STEP_PARTS:
        value = median_or_none(record.values(f"seconds_{name}"))
        if value:
            parts.append((name, value, format_seconds(value)))
    if not parts:
        return ""
    rest = whole - sum(value for _, value, _ in parts)
    if rest > 0.005 * whole:
        parts.append(("other", rest, format_seconds(rest)))
    inside = [
        f"{format_seconds(value)} ({100 * value / whole:.0f}%) {label}"
        for key, label in (("communication", "in communication"), ("io", "blocked by NVMe"))
        if (value := median_or_none(record.values(f"seconds_{key}")))
    ]
    within = f'<p class="quiet">Inside of these: {escape(", ".join(inside))}.</p>' if inside else ""
    title = f"The median step, {format_seconds(whole)}"
    inner = f"<h3>{escape(title)}</h3>{render_share_bar(parts)}{within}{_render_between_steps(record, sum(totals))}"
    return f'<div class="card spaced">{inner}</div>'


def _render_between_steps(record: RunRecord, inside: float) -> str:
    """Saves and evaluations, which no step contains."""
    sums = {
        "saves": sum(v for _, v in record.points("step", "seconds_checkpoint"))
        or sum(v for _, v in record.points("save", "stall_seconds")),
        "evaluations": sum(v for _, v in record.points("step", "seconds_evaluation"))
        or sum(v for _, v in record.points("eval", "seconds")),
    }
    parts = [f"{format_seconds(s)} in {name}" for name, s in sums.items() if s >= 0.001]
    if not parts or not inside:
        return ""
    share = 100 * sum(sums.values()) / (inside + sum(sums.values()))
    return f'<p class="quiet">Between the steps: {escape(" and ".join(parts))}, {share:.0f}% of the run.</p>'
