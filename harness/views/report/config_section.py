# SPDX-License-Identifier: Apache-2.0
"""The configuration of the run: the spec as written, the DeepSpeed JSON with a reason for each key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.render import render_ds_config
from harness.run_records.run_files import parse_object
from harness.run_records.run_record import RunRecord
from harness.views.report.html_elements import Cell, escape, note_cell, render_details, render_table, truncate

_ABSENT = object()


def render_config(record: RunRecord, most: int) -> str:
    """Two folded blocks, each text cut at a maximum length."""
    parts = []
    if record.spec_text.strip():
        parts.append(render_details("spec.yaml", f"<pre>{escape(truncate(record.spec_text.rstrip(), most))}</pre>"))
    if record.config_text.strip():
        body = _render_reasons(record) + f"<pre>{escape(truncate(record.config_text.rstrip(), most))}</pre>"
        parts.append(render_details("ds_config.json, with reasons", body))
    return f"<h2>Configuration</h2>{''.join(parts)}" if parts else ""


def render_sample(record: RunRecord, most: int) -> str:
    """The text that the export generated."""
    if not record.sample.strip():
        return ""
    text = escape(truncate(record.sample.rstrip(), most))
    return f'<h2>Sample from the export</h2><div class="card"><pre class="wrap">{text}</pre></div>'


def _render_reasons(record: RunRecord) -> str:
    """Key, value and reason, where this harness renders the same value; an older or edited JSON has fewer reasons."""
    run_config = parse_object(record.config_text)
    if record.run is None or not run_config:
        return ""
    config = render_ds_config(record.run)
    lines: list[list[str | Cell]] = []
    for key, reason in config.reasons.items():
        value = _value_at(run_config, key)
        if value is _ABSENT or value != _value_at(config.config, key):
            continue
        lines.append([_code_cell(key), _code_cell(json.dumps(value)), note_cell(reason)])
    return render_table(["key", "value", "why"], lines) if lines else ""


def _code_cell(text: str) -> Cell:
    return Cell(f"<code>{escape(text)}</code>")


def _value_at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part, _ABSENT) if isinstance(config, Mapping) else _ABSENT
    return config
