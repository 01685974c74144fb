"""What the run asked its own engine, and what it was told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.records.record import Record
from harness.views.report.html import code, escape

_WORDS = {"holds": "holds", "differs": "differs", "skipped": "not asked"}


def attestation(record: Record) -> str:
    """A line with the counts, what differs below it, and all claims folded; nothing for a run that asked nothing."""
    if not record.claims:
        return ""
    by_state = {state: [c for c in record.claims if c.get("state") == state] for state in _WORDS}
    wrong = "".join(
        f'<li class="bad">{_id(c)}: {code(str(c.get("text", "")))}</li>'
        for c in by_state["differs"]
        if "ignored" not in c
    )
    counts = f"{len(by_state['holds'])} of {len(record.claims)} claims hold"
    counts += f", {len(by_state['differs'])} do not" if by_state["differs"] else ""
    counts += f"; {len(by_state['skipped'])} could not be asked of this run" if by_state["skipped"] else ""
    rows = "".join(_row(claim) for claim in record.claims)
    table = f"<details><summary>all claims</summary><table>{rows}</table></details>"
    return (
        '<h2 id="attestation">What the run asked its engine</h2>'
        f'<div class="card"><p>{counts}.</p>{f"<ul>{wrong}</ul>" if wrong else ""}{table}</div>'
    )


def _row(claim: Mapping[str, Any]) -> str:
    state = _WORDS.get(str(claim.get("state")), "?")
    told = code(str(claim.get("text") or ""))
    if "ignored" in claim:
        told += f" (ignored by the spec: {escape(str(claim['ignored']))})"
    return (
        f"<tr><td>{_id(claim)}</td><td>{code(str(claim.get('question', '')))}</td><td>{state}</td><td>{told}</td></tr>"
    )


def _id(claim: Mapping[str, Any]) -> str:
    return escape(str(claim.get("id", "?")))
