"""What was decided before the run: the spec as it was written, the DeepSpeed JSON with a reason for each key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.records.files import parsed
from harness.records.record import Record
from harness.render import render
from harness.views.report.html import Cell, cut, details, escape, table, why

_ABSENT = object()


def configuration(record: Record, most: int) -> str:
    """Two folded blocks; of each text at most so many characters."""
    parts = []
    if record.spec_text.strip():
        parts.append(details("spec.yaml", f"<pre>{escape(cut(record.spec_text.rstrip(), most))}</pre>"))
    if record.config_text.strip():
        body = _reasons(record) + f"<pre>{escape(cut(record.config_text.rstrip(), most))}</pre>"
        parts.append(details("ds_config.json, with reasons", body))
    return f"<h2>Configuration</h2>{''.join(parts)}" if parts else ""


def sample(record: Record, most: int) -> str:
    """What was generated from the export."""
    if not record.sample.strip():
        return ""
    text = escape(cut(record.sample.rstrip(), most))
    return f'<h2>Sample from the export</h2><div class="card"><pre class="wrap">{text}</pre></div>'


def _reasons(record: Record) -> str:
    """Key, value and reason for what this harness would render the same; an older or edited JSON has fewer of them."""
    written = parsed(record.config_text)
    if record.run is None or not written:
        return ""
    config = render(record.run)
    lines: list[list[str | Cell]] = []
    for key, reason in config.reasons.items():
        value = _at(written, key)
        if value is _ABSENT or value != _at(config.config, key):
            continue
        lines.append([_code(key), _code(json.dumps(value)), why(reason)])
    return table(["key", "value", "why"], lines) if lines else ""


def _code(text: str) -> Cell:
    return Cell(f"<code>{escape(text)}</code>")


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part, _ABSENT) if isinstance(config, Mapping) else _ABSENT
    return config
