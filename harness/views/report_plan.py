"""The report's parts that are about what was decided before the run: memory planned beside measured, the configuration.

Shows what the run directory and the plan say; counts nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from harness.render import render
from harness.units import format_bytes, format_seconds
from harness.views.plan_plot import memory_svg
from harness.views.plots import Series, line_chart, pair_bars
from harness.views.report_data import Record, number


def memory_section(record: Record) -> str:
    """Planned and measured memory, the rows of the plan, and its alternatives."""
    plan = record.plan
    picture = memory_svg(plan)
    drawn = f'<figure class="card"><h3>Planned memory by alternative</h3>{picture}</figure>' if picture else ""
    parts = [_planned_and_measured(record), drawn, _rows(plan), _alternatives(plan)]
    body = "".join(part for part in parts if part)
    return f"<h2>Memory, planned and measured</h2>{body}" if body else ""


def _planned_and_measured(record: Record) -> str:
    plan, bars = record.plan, []
    pooled = plan.get("device_memory_is_host_memory") is True
    host, gpu = number(plan.get("host_peak_bytes")), number(plan.get("gpu_peak_bytes"))
    ranks = number(plan.get("ranks_per_host")) or 1
    resident = [value for _, value in record.points("step", "memory_host_bytes")]
    peaks = [value for _, value in record.points("step", "memory_gpu_peak_bytes")]
    on_device = bool(peaks)
    if host is not None and gpu is not None:
        planned = host / ranks if pooled or on_device else host / ranks + gpu
        bars.append(("host, planned for a rank", planned, format_bytes(planned), 5))
    if resident:
        bars.append(("host, measured on rank 0", max(resident), format_bytes(max(resident)), 1))
    if gpu is not None and on_device:
        bars.append(("GPU, planned for a rank", gpu, format_bytes(gpu), 5))
    if peaks:
        bars.append(("GPU, measured on rank 0", max(peaks), format_bytes(max(peaks)), 1))
    if not bars:
        return ""
    drawn = pair_bars([bar[:3] for bar in bars], [bar[3] for bar in bars])
    note = "" if on_device else _CPU_NOTE
    chart = line_chart("Resident memory of rank 0, GiB", [Series("GiB", _gib(record), colour=1)], zero=True)
    return f'<div class="grid2"><div class="card">{drawn}{note}</div>{chart if resident else ""}</div>'


_CPU_NOTE = (
    '<p class="quiet">On the CPU accelerator what would be GPU memory is host memory. Planned is the peak within a '
    "step; measured is the resident set between steps.</p>"
)


def _gib(record: Record) -> list[tuple[float, float]]:
    return [(step, value / 2**30) for step, value in record.points("step", "memory_host_bytes")]


def _rows(plan: Mapping[str, Any]) -> str:
    rows = [row for row in plan.get("rows") or [] if isinstance(row, dict)]
    if not rows:
        return ""
    lines = []
    for row in rows:
        size = number(row.get("bytes_per_rank"))
        cells = [
            str(row.get("tier", "")),
            str(row.get("what", "")),
            str(row.get("formula", "")),
            str(row.get("source", "")),
        ]
        lines.append(
            f"<tr><td>{escape(cells[0])}</td><td>{escape(cells[1])}</td>"
            f'<td class="num">{"" if size is None else format_bytes(size)}</td>'
            f'<td class="why">{escape(cells[2])}</td><td class="why">{escape(cells[3])}</td></tr>'
        )
    head = '<tr><th>tier</th><th>what</th><th class="num">a rank</th><th>formula</th><th>seen in</th></tr>'
    return _details("Every row of the plan", f"<table>{head}{''.join(lines)}</table>")


def _alternatives(plan: Mapping[str, Any]) -> str:
    rungs = [rung for rung in plan.get("alternatives") or [] if isinstance(rung, dict)]
    if not rungs:
        return ""
    timed = any(number(rung.get("step_seconds")) for rung in rungs)
    head = '<tr><th>alternative</th><th class="num">GPU a rank</th><th class="num">host</th><th class="num">NVMe</th>'
    head += '<th class="num">step</th></tr>' if timed else "</tr>"
    lines = []
    for rung in rungs:
        sizes = (number(rung.get(key)) for key in ("gpu_peak_bytes", "host_peak_bytes", "nvme_bytes"))
        cells = "".join(f'<td class="num">{format_bytes(size) if size else "-"}</td>' for size in sizes)
        seconds = number(rung.get("step_seconds"))
        cells += f'<td class="num">{format_seconds(seconds) if seconds else "-"}</td>' if timed else ""
        chosen = ' class="chosen"' if rung.get("chosen") else ""
        lines.append(f"<tr{chosen}><td>{escape(str(rung.get('title', '')))}</td>{cells}</tr>")
    return _details("What else would have fitted", f"<table>{head}{''.join(lines)}</table>")


def configuration(record: Record) -> str:
    """The spec as it was written, and the DeepSpeed JSON with a reason for each key."""
    parts = []
    if record.spec_text.strip():
        parts.append(_details("spec.yaml", f"<pre>{escape(record.spec_text.rstrip())}</pre>"))
    if record.config_text.strip():
        parts.append(_details("ds_config.json", _reasons(record) + f"<pre>{escape(record.config_text.rstrip())}</pre>"))
    return f"<h2>Configuration</h2>{''.join(parts)}" if parts else ""


def _reasons(record: Record) -> str:
    """Key, value and reason for what this harness would render the same; an older or edited JSON has fewer of them."""
    written = _parsed(record.config_text)
    if record.run is None or not written:
        return ""
    config = render(record.run)
    lines = []
    for key, reason in config.reasons.items():
        value = _at(written, key)
        if value is _ABSENT or value != _at(config.config, key):
            continue
        lines.append(
            f"<tr><td><code>{escape(key)}</code></td><td><code>{escape(json.dumps(value))}</code></td>"
            f'<td class="why">{escape(reason.replace("`", ""))}</td></tr>'
        )
    return f"<table><tr><th>key</th><th>value</th><th>why</th></tr>{''.join(lines)}</table>" if lines else ""


_ABSENT = object()


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part, _ABSENT) if isinstance(config, Mapping) else _ABSENT
    return config


def _parsed(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _details(title: str, body: str) -> str:
    return f'<details class="card"><summary>{escape(title)}</summary><div class="scroll">{body}</div></details>'
