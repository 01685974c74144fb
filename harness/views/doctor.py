# SPDX-License-Identifier: Apache-2.0
"""The rows of `harness doctor` as text and as JSON. Runs no check."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.launching.programs.aio_tuning import AioResult
from harness.launching.programs.doctor_rows import DoctorCheck
from harness.views.style import Style

_STATE_MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "missing": ("MISSING", "red")}


def render_checks(rows: Sequence[DoctorCheck], style: Style, cluster: Mapping[str, str] | None = None) -> str:
    """One line a fact under its area; what it means and how to fix it below, where there is something to say.

    `cluster`: what was measured, as a section of a run spec to paste.
    """
    lines: list[str] = []
    area = ""
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        if row.area != area:
            lines += ["", style.paint(row.area, "", bold=True)] if lines else [style.paint(row.area, "", bold=True)]
            area = row.area
        mark, colour = _STATE_MARKS[row.state]
        lines.append(f"  {style.paint(mark.ljust(7), colour)}  {row.name.ljust(width)}  {row.value}")
        indent = " " * (width + 13)
        if row.means:
            lines.append(f"{indent}{row.means}")
        if row.fix:
            lines.append(f"{indent}{style.paint('help', 'green', bold=True)}: {row.fix}")
    if cluster:
        lines += ["", "For `harness plan`, in a run spec:", "cluster:"]
        lines += [f"  {key}: {value}" for key, value in cluster.items()]
    return "\n".join([*lines, "", _format_readiness(rows, style)])


def checks_as_json(
    rows: Sequence[DoctorCheck], measured: Mapping[str, Any] | None = None, cluster: Mapping[str, str] | None = None
) -> str:
    """All rows, whether training can start, and the figures in bytes, FLOP and parameters a second."""
    body: dict[str, Any] = {
        "format_version": 1,
        "can_train": not any(row.state == "missing" for row in rows),
        "totals": {state: sum(row.state == state for row in rows) for state in ("ok", "note", "missing")},
        "rows": [asdict(row) for row in rows],
    }
    if measured:
        body |= {"measured": dict(measured), "cluster": dict(cluster or {})}
    return json.dumps(body, indent=2)


def format_aio_trial(trial: Mapping[str, Any]) -> str:
    """One setting of the I/O search."""
    setting = (
        f"{trial['block_size'] >> 20} MiB blocks, {trial['queue_depth']} deep, {trial['intra_op_parallelism']} threads"
    )
    flags = [name for name in ("single_submit", "overlap_events") if trial[name]]
    rates = f"read {trial['read'] / 1e9:.2f} GB/s, write {trial['write'] / 1e9:.2f} GB/s"
    return f"{trial['trial']:>3}/{trial['of']}  {rates}  {', '.join([setting, *flags])}"


def format_aio_result(best: AioResult) -> str:
    """The result of the search."""
    gain = (1 / best.first_read + 1 / best.first_write) / (1 / best.read + 1 / best.write)
    return (
        f"best of {best.num_trials} settings ({best.num_settings} in all): read {best.read / 1e9:.2f} GB/s, write "
        f"{best.write / 1e9:.2f} GB/s, {gain:.2f} times the first one tried; for the run spec:"
    )


def _format_readiness(rows: Sequence[DoctorCheck], style: Style) -> str:
    missing = [row.name for row in rows if row.state == "missing"]
    notes = sum(row.state == "note" for row in rows)
    if missing:
        return f"{style.paint('Training cannot start here', 'red', bold=True)}: {', '.join(missing)}"
    count = f"{notes} note{'' if notes == 1 else 's'}"
    limits = [row.limits for row in rows if row.limits]
    if limits:
        return f"{style.paint('Training can start here', 'yellow', bold=True)}, except {'; '.join(limits)}; {count}"
    return f"{style.paint('Training can start here', 'green', bold=True)}, {count}"
