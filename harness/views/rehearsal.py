# SPDX-License-Identifier: Apache-2.0
"""A rehearsal as text and as JSON: the changes, each phase, and measurements against the plan, extrapolated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.launching.programs.rehearsal import RehearsalPlan, RehearsalResult
from harness.plan.planner import Plan
from harness.rehearsal.extrapolation import Quantity, sum_by_tier
from harness.rehearsal.small_run import KeyChange, SmallRun
from harness.units import format_bytes, format_count, format_seconds

FORMAT_VERSION = 1
_COLUMNS = ("", "measured", "planned", "ratio", "extrapolated to the whole run", "its plan", "how sure")
_MAX_LINES = 10


def render_rehearsal(plan: RehearsalPlan, result: RehearsalResult) -> str:
    """The whole report."""
    parts = [_format_title(plan.small, plan.whole), render_changes(plan.small.changes)]
    parts.append("\n".join(f"  {s.name:<8}{format_seconds(s.seconds):>10}  {s.what}" for s in result.stages))
    if result.quantities:
        parts.append(render_quantities(result.quantities))
    return "\n\n".join(part for part in parts if part)


def _format_title(small: SmallRun, whole: Plan) -> str:
    plans = (whole, small.plan)
    counts = [format_count(plan.model.num_parameters) if plan.model else "?" for plan in plans]
    ranks = [plan.run.parallel_dims.world_size for plan in plans]
    return (
        f"{whole.run.name}: {counts[0]} parameters on {ranks[0]} ranks ({whole.title}), rehearsed with {counts[1]} "
        f"on {ranks[1]}"
    )


def render_changes(changes: Sequence[KeyChange]) -> str:
    """The changed keys, one per line."""
    width = max((len(change.key) for change in changes), default=0)
    lines = [f"  {c.key:<{width}}  {_format_value(c.was)} -> {_format_value(c.now)}  ({c.why})" for c in changes]
    return "\n".join(["Changed keys:", *lines])


def _format_value(value: Any) -> str:
    if value is None:
        return "not set"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else json.dumps(value)
    return text if len(text) <= 48 else f"{text[:45]}..."


def render_quantities(quantities: Sequence[Quantity]) -> str:
    """Ten lines at most: the states of each tier, then phases, a checkpoint, a step."""
    others = [q for q in quantities if not _is_state(q)]
    lines = [*sum_by_tier([q for q in quantities if _is_state(q)]), *others][:_MAX_LINES]
    rows = [_COLUMNS, *map(_format_cells, lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    align = ["<", ">", ">", ">", ">", ">", "<"]
    return "\n".join(
        "  ".join(f"{cell:{a}{w}}" for cell, a, w in zip(row, align, widths, strict=True)).rstrip() for row in rows
    )


def _is_state(q: Quantity) -> bool:
    return q.name.partition(".")[0] in ("gpu", "host", "nvme") and " " not in q.name


def _format_cells(q: Quantity) -> tuple[str, ...]:
    show = format_bytes if q.unit == "bytes" else format_seconds
    ratio = "-" if q.ratio is None else f"{q.ratio:.3f}"
    if q.low is None or q.high is None:
        carried, sure = "-", q.why or "not extrapolated"
    elif q.exact:
        carried, sure = show(q.low), "exact to the byte"
    else:
        carried = f"{show(q.low)} to {show(q.high)}" if show(q.low) != show(q.high) else show(q.low)
        apart = 100 * (q.high - q.low) / max(q.high, 1e-9)
        sure = q.why or (f"between, {apart:.0f}% apart" if apart >= 0.5 else "by ratio")
    planned, whole = ("-" if n is None else show(n) for n in (q.planned, q.whole))
    return q.name, show(q.measured), planned, ratio, carried, whole, sure


def rehearsal_as_json(plan: RehearsalPlan, result: RehearsalResult) -> str:
    """The report for programs, in bytes and seconds."""
    small, whole, quantities = plan.small, plan.whole, result.quantities
    body = {
        "format_version": FORMAT_VERSION,
        "name": whole.run.name,
        "folder": str(plan.folder),
        "parameters": {
            "whole": whole.model.num_parameters if whole.model else None,
            "rehearsed": small.plan.model.num_parameters if small.plan.model else None,
        },
        "ranks": {"whole": whole.run.parallel_dims.world_size, "rehearsed": small.plan.run.parallel_dims.world_size},
        "changes": [asdict(change) for change in small.changes],
        "stages": [asdict(stage) for stage in result.stages],
        "quantities": [{**asdict(q), "ratio": q.ratio} for q in quantities],
        "states_exact": all(q.exact for q in quantities if _is_state(q)) if any(map(_is_state, quantities)) else None,
        "findings": [
            {"gate": f.gate, "severity": f.severity, "message": f.message, "key": f.key, "notes": list(f.notes)}
            for f in result.findings
        ],
    }
    return json.dumps(body, indent=2)
