# SPDX-License-Identifier: Apache-2.0
"""The problems of a run: failures, findings of the gates, and findings that the spec ignores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.run_records.run_record import RunRecord
from harness.units import finite_number, format_seconds
from harness.verdicts import Verdict, describe_end
from harness.views.report.html_elements import escape, format_code

_MAX_ITEMS = 100
_STRAGGLER_CAUSES = {
    "data": "waiting for data",
    "input_size": "longer inputs",
    "io": "swapping",
    "host": "work on the host",
    "gpu": "its GPU",
}


def render_problems(record: RunRecord) -> str:
    """Failures first, then restarts and slow ranks, then findings."""
    items = [*_failure_items(record), *_event_items(record), *_finding_items(record)]
    if len(items) > _MAX_ITEMS:
        items = [*items[:_MAX_ITEMS], f"<li>and {len(items) - _MAX_ITEMS:,} more</li>"]
    body = f"<ul>{''.join(items)}</ul>" if items else '<p class="quiet">No failures and no findings.</p>'
    return f'<h2>Problems and notes</h2><div class="card">{body}</div>'


def _failure_items(record: RunRecord) -> list[str]:
    verdict = record.verdict if not record.is_locked else None
    items = _verdict_items(verdict) if verdict else []
    for s in record.statuses:
        if not s.get("error") or (verdict and s.get("rank") == verdict.rank):
            continue
        who, error = (
            f"rank {_escape_field(s, 'rank')} on {_escape_field(s, 'host')}",
            f"<code>{_escape_field(s, 'error')}</code>",
        )
        after = f"<li>after that, {who} failed: {error}</li>"
        items.append(after if verdict else f'<li class="bad"><b>failed:</b> {who}: {error}</li>')
    items += [
        f"<li>a save failed after step {_escape_field(s, 'step')}: {format_code(str(s.get('error', '')))}</li>"
        for s in record.lines_of("save_failed")
    ]
    items += [
        f"<li>not in the object store: {format_code(str(s.get('error', '')))}</li>"
        for s in record.lines_of("upload_failed")
        if not s.get("skipped")
    ]
    if record.state == "broken off":
        items.append(
            "<li>no process holds the run directory and the run has no final status: it was killed, or this is a "
            "copy</li>"
        )
    return items


def _verdict_items(verdict: Verdict) -> list[str]:
    """The supervisor's verdict on the run; of a completed run, what is not uploaded, and unusual events."""
    items = [f"<li>{escape(note)}</li>" for note in verdict.notes]
    if verdict.state == "completed":
        return [f"<li>{escape(verdict.reason)}</li>", *items] if verdict.reason else items
    end = escape(describe_end(verdict)[:2000])
    if verdict.state == "stopped":
        return [f"<li>stopped{end}</li>", *items]
    return [f'<li class="bad"><b>failed</b>{end}</li>', *items]


def _event_items(record: RunRecord) -> list[str]:
    items = _data_items(record.header)
    for s in record.lines_of("restart"):
        host = f" ({_escape_field(s, 'host')})" if s.get("host") else ""
        rank = f" on rank {_escape_field(s, 'rank')}{host}" if s.get("rank") is not None else ""
        failed = f"failed{rank} at step {_escape_field(s, 'lost_step')}: {_escape_field(s, 'cause', '')}"
        items.append(f"<li>{failed}; restarted from step {_escape_field(s, 'step')}</li>")
    stops = record.lines_of("stop") if record.verdict is None else ()
    items += [
        f"<li>stopped after step {_escape_field(s, 'step')}: {_escape_field(s, 'reason', '')}</li>" for s in stops
    ]
    items += [_render_straggler(s) for s in record.lines_of("straggler") if s.get("state") == "named"]
    items += [_render_gpu(s) for s in record.lines_of("gpu") if s.get("state") == "problem"]
    items += [
        f"<li>the tracker {_escape_field(s, 'tracker')} was disabled at step {_escape_field(s, 'step')}: "
        f"{_escape_field(s, 'error')}</li>"
        for s in record.lines_of("tracker_failed")
    ]
    items += [
        f"<li>lines of metrics.jsonl are missing, {_escape_field(s, 'rows')}: {_escape_field(s, 'error')}</li>"
        for s in record.lines_of("rows_dropped")
    ]
    skips = record.lines_of("skip")
    if skips:
        steps = ", ".join(str(s.get("step", "?")) for s in skips[:10]) + (" ..." if len(skips) > 10 else "")
        many = f"{len(skips):,} step{'s' if len(skips) > 1 else ''}"
        items.append(f"<li>{many} skipped (NaN or infinity): {escape(steps)}</li>")
    items += [f"<li>{format_code(text)}</li>" for text in record.unusable]
    if record.unread_lines:
        lines = "1 line" if record.unread_lines == 1 else f"{record.unread_lines:,} lines"
        items.append(f"<li>{lines} of metrics.jsonl could not be read</li>")
    return items


def _data_items(header: Mapping[str, Any]) -> list[str]:
    """Records that were not trained on, or not all of them."""
    left_out, num_cut = header.get("records_left_out"), finite_number(header.get("records_cut"))
    counts = {kind: n for kind, n in left_out.items() if finite_number(n)} if isinstance(left_out, Mapping) else {}
    items = []
    if counts:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(counts.items()))
        items.append(f"<li>records left out of the data: {escape(kinds[:2000])}; <code>data/skipped.jsonl</code></li>")
    if num_cut:
        items.append(f"<li>records cut at <code>data.max_length</code>: {num_cut:,.0f}</li>")
    return items


def _render_straggler(line: Mapping[str, Any]) -> str:
    ranks = line.get("ranks")
    who = ", ".join(str(r) for r in ranks[:8]) if isinstance(ranks, list) else "?"
    slower = finite_number(line.get("slower"))
    much = "slower than its peers" if slower is None else f"{100 * slower:.0f}% slower than its peers"
    busy, peers = finite_number(line.get("busy")), finite_number(line.get("peers"))
    if busy is not None and peers is not None:
        much += f" ({format_seconds(busy)} against {format_seconds(peers)} a step)"
    cause = str(line.get("cause", ""))
    likely = f", likely by {_STRAGGLER_CAUSES.get(cause, cause)}" if cause else ""
    whole = "the whole host " if line.get("whole_host") is True else ""
    return (
        f"<li>slow: {whole}rank {escape(who)} on {_escape_field(line, 'host')}, {escape(much + likely)}, "
        f"from step {_escape_field(line, 'step')} on: {_escape_field(line, 'evidence', '')}</li>"
    )


def _render_gpu(line: Mapping[str, Any]) -> str:
    name = escape(str(line.get("bus_id") or line.get("uuid") or "?"))
    return (
        f"<li>GPU {name} of rank {_escape_field(line, 'rank')} on {_escape_field(line, 'host')} "
        f"{_escape_field(line, 'evidence', '')}, from step {_escape_field(line, 'step')} on</li>"
    )


def _finding_items(record: RunRecord) -> list[str]:
    items = [_render_finding(f, str(f.get("severity", ""))) for f in record.findings]
    items += [_render_finding(f, "ignored by the spec:") for f in record.ignored]
    return items + [_render_finding(f, "left out by an option:") for f in record.left_out]


def _render_finding(f: Mapping[str, Any], how: str) -> str:
    fix = f.get("fix")
    title = f"; help: {format_code(str(fix.get('title', '')))}" if isinstance(fix, Mapping) and fix.get("title") else ""
    return f"<li>{escape(how)} {_escape_field(f, 'gate', '')}: {format_code(str(f.get('message', '')))}{title}</li>"


def _escape_field(line: Mapping[str, Any], key: str, absent: str = "?") -> str:
    value = line.get(key)
    return escape(str(absent if value is None else value)[:2000])
