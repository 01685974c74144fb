# SPDX-License-Identifier: Apache-2.0
"""The patches of the run: the changes that the harness made inside DeepSpeed and other packages."""

from __future__ import annotations

from harness.patches.patch_registry import all_patches
from harness.run_records.run_record import RunRecord
from harness.views.report.html_elements import Cell, escape, note_cell, render_table

_PLAIN_STATES = ("applied", "not needed")


def render_patches(record: RunRecord) -> str:
    """A line with the count, what is off or was skipped below it, and all patches folded; empty for a run that recorded
    none. Of a run that was restarted, the states are those of its last start.
    """
    header = record.lines_of("run")[-1] if record.lines_of("run") else {}
    states = header.get("patches")
    if not isinstance(states, dict) or not states:
        return ""
    texts = {str(name): str(state) for name, state in states.items()}
    others = {name: state for name, state in texts.items() if state not in _PLAIN_STATES}
    count = f"{sum(state == 'applied' for state in texts.values())} of {len(texts)} patches were applied."
    items = "".join(f"<li><code>{escape(name)}</code>: {escape(state)}</li>" for name, state in others.items())
    summaries = {patch.name: f"{patch.kind}: {patch.summary}" for patch in all_patches()}
    rows: list[list[str | Cell]] = [
        [Cell(f"<code>{escape(name)}</code>"), note_cell(state), note_cell(summaries.get(name, ""))]
        for name, state in texts.items()
    ]
    table = f"<details><summary>all patches</summary>{render_table(['patch', 'state', 'change'], rows)}</details>"
    return (
        '<h2 id="patches">Patches of DeepSpeed and other packages</h2>'
        f'<div class="card"><p>{count}</p>{f"<ul>{items}</ul>" if items else ""}{table}</div>'
    )
