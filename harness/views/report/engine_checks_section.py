# SPDX-License-Identifier: Apache-2.0
"""The checks of the run's own engine, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.run_records.run_record import RunRecord
from harness.views.report.html_elements import escape, format_code

_STATE_LABELS = {"holds": "holds", "differs": "differs", "skipped": "not asked"}


def render_engine_checks(record: RunRecord) -> str:
    """A line with the counts, the differences, and all checks folded; nothing for a run without checks."""
    if not record.engine_checks:
        return ""
    by_state = {state: [c for c in record.engine_checks if c.get("state") == state] for state in _STATE_LABELS}
    differences = "".join(
        f'<li class="bad">{_escape_id(c)}: {format_code(str(c.get("text", "")))}</li>'
        for c in by_state["differs"]
        if "ignored" not in c
    )
    counts = f"{len(by_state['holds'])} of {len(record.engine_checks)} checks passed"
    counts += f", {len(by_state['differs'])} failed" if by_state["differs"] else ""
    counts += f"; {len(by_state['skipped'])} do not apply to this run" if by_state["skipped"] else ""
    rows = "".join(_render_row(claim) for claim in record.engine_checks)
    table = f"<details><summary>all claims</summary><table>{rows}</table></details>"
    return (
        '<h2 id="engine-checks">Engine checks</h2>'
        f'<div class="card"><p>{counts}.</p>{f"<ul>{differences}</ul>" if differences else ""}{table}</div>'
    )


def _render_row(claim: Mapping[str, Any]) -> str:
    state = _STATE_LABELS.get(str(claim.get("state")), "?")
    text = format_code(str(claim.get("text") or ""))
    if "ignored" in claim:
        text += f" (ignored by the spec: {escape(str(claim['ignored']))})"
    question = format_code(str(claim.get("question", "")))
    return f"<tr><td>{_escape_id(claim)}</td><td>{question}</td><td>{state}</td><td>{text}</td></tr>"


def _escape_id(claim: Mapping[str, Any]) -> str:
    return escape(str(claim.get("id", "?")))
