# SPDX-License-Identifier: Apache-2.0
"""Planned and measured memory, tier by tier, and the rows of the plan. Counts nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.run_records.run_record import RunRecord
from harness.units import finite_number, format_bytes, format_seconds
from harness.views.plan_plot import render_memory_svg
from harness.views.report.charts import Chart, Series
from harness.views.report.html_elements import (
    Cell,
    note_cell,
    number_cell,
    render_details,
    render_pair_bars,
    render_table,
)
from harness.views.report.training_charts import to_gib

_PLANNED_COLOUR, _MEASURED_COLOUR = 5, 1
MemoryBar = tuple[str, float, str, int]


def render_memory_bars(record: RunRecord) -> str:
    """Planned and measured memory of each tier, and the difference."""
    host = max_recorded(record, "memory_host_peak_bytes", "memory_host_bytes")
    nvme = finite_number(record.plan.get("nvme_bytes"))
    bars = [
        *_planned_measured_bars("host memory per rank", planned_host_bytes(record), host),
        *_gpu_bars(record),
        *_planned_measured_bars("NVMe per host", nvme, max_recorded(record, "nvme_bytes"), "its host"),
    ]
    if not bars:
        return ""
    picture = render_pair_bars([bar[:3] for bar in bars], [bar[3] for bar in bars])
    note = _CPU_NOTE if record.on_cpu else ""
    return f'<div class="card">{picture}{note}</div>'


_CPU_NOTE = (
    '<p class="quiet">On the CPU accelerator GPU memory is host memory. Planned is the peak within a '
    "step; measured is the resident set, between steps where no peak was recorded.</p>"
)


def _planned_measured_bars(
    tier: str, planned: float | None, measured: float | None, who: str = "rank 0"
) -> list[MemoryBar]:
    bars: list[MemoryBar] = []
    if planned:
        bars.append((f"{tier}, planned", planned, format_bytes(planned), _PLANNED_COLOUR))
    if measured:
        apart = f" ({100 * (measured / planned - 1):+.0f}%)" if planned else ""
        bars.append((f"{tier}, measured on {who}", measured, format_bytes(measured) + apart, _MEASURED_COLOUR))
    return bars


def _gpu_bars(record: RunRecord) -> list[MemoryBar]:
    peak = max_recorded(record, "memory_gpu_peak_bytes", "memory_gpu_bytes")
    if peak is None:
        return []
    bars = _planned_measured_bars("GPU memory per rank", finite_number(record.plan.get("gpu_peak_bytes")), peak)
    reserved = max_recorded(record, "memory_gpu_reserved_bytes")
    return bars + ([("GPU, reserved by the allocator", reserved, format_bytes(reserved), 3)] if reserved else [])


def build_memory_charts(record: RunRecord) -> list[Chart]:
    """Memory over the run, with the plan as a level line."""
    host = [Series("resident", to_gib(record.points("step", "memory_host_bytes")), colour=1)]
    charts = [Chart("Host memory of rank 0", host, "GiB", zero=True)]
    planned = finite_number(record.plan.get("gpu_peak_bytes"))
    gpu = [
        Series("allocated", to_gib(record.points("step", "memory_gpu_bytes")), colour=1),
        Series("reserved", to_gib(record.points("step", "memory_gpu_reserved_bytes")), colour=3, dash=1),
        Series("peak so far", to_gib(record.points("step", "memory_gpu_peak_bytes")), colour=2, dash=2),
        Series("peak, planned", [(0.0, planned / 2**30)] if planned else [], "rule", 5, 1),
    ]
    if any(s.points for s in gpu[:3]):
        charts.append(Chart("GPU memory of rank 0", gpu, "GiB", zero=True))
    swapped = to_gib(record.points("step", "nvme_bytes"))
    if any(y for _, y in swapped):
        charts.append(Chart("Swap files on NVMe", [Series("swap files", swapped)], "GiB", zero=True))
    return [chart for chart in charts if any(s.points for s in chart.series)]


def render_plan_tables(record: RunRecord) -> str:
    """The rows of the plan, and the alternatives as a chart and as a table."""
    plan = record.plan
    picture = render_memory_svg(plan)
    scrolled = f'<div class="scroll" tabindex="0"><div class="wide">{picture}</div></div>' if picture else ""
    rungs = _render_alternatives(plan)
    body = render_details("Alternatives", scrolled + rungs) if scrolled or rungs else ""
    return body + _render_memory_items(plan)


def _render_memory_items(plan: Mapping[str, Any]) -> str:
    rows = [row for row in _as_list(plan.get("rows")) if isinstance(row, dict)]
    if not rows:
        return ""
    lines: list[list[str | Cell]] = []
    for row in rows[:200]:
        size = finite_number(row.get("bytes_per_rank"))
        cells: list[str | Cell] = [str(row.get("tier", "")), str(row.get("what", ""))]
        cells += [number_cell("" if size is None else format_bytes(size)), note_cell(str(row.get("formula", "")))]
        lines.append([*cells, note_cell(str(row.get("source", "")))])
    return render_details(
        "Every row of the plan", render_table(["tier", "what", "a rank", "formula", "seen in"], lines)
    )


def _render_alternatives(plan: Mapping[str, Any]) -> str:
    rungs = [rung for rung in _as_list(plan.get("alternatives")) if isinstance(rung, dict)]
    if not rungs:
        return ""
    timed = any(finite_number(rung.get("step_seconds")) for rung in rungs)
    lines: list[list[str | Cell]] = []
    for rung in rungs[:100]:
        sizes = (finite_number(rung.get(key)) for key in ("gpu_peak_bytes", "host_peak_bytes", "nvme_bytes"))
        cells: list[str | Cell] = [
            str(rung.get("title", "")),
            *(number_cell(format_bytes(size) if size else "-") for size in sizes),
        ]
        seconds = finite_number(rung.get("step_seconds"))
        lines.append([*cells, *([number_cell(format_seconds(seconds) if seconds else "-")] if timed else [])])
    marked = next((i for i, rung in enumerate(rungs) if rung.get("chosen")), -1)
    device = "device" if plan.get("device") == "cpu" else "GPU"
    head = ["alternative", f"{device} per rank", "host", "NVMe", *(["step"] if timed else [])]
    return render_table(head, lines, marked=marked)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


PlannedMeasured = tuple[float | None, float]


def compare_memory(record: RunRecord) -> list[tuple[str, PlannedMeasured]]:
    """(tier, (bytes planned or None, bytes measured at most)) for every tier that was measured. Host and GPU are a
    rank's, NVMe is a host's.
    """
    plan = record.plan
    pairs = [
        (
            "GPU",
            finite_number(plan.get("gpu_peak_bytes")),
            max_recorded(record, "memory_gpu_peak_bytes", "memory_gpu_bytes"),
        ),
        ("host", planned_host_bytes(record), max_recorded(record, "memory_host_peak_bytes", "memory_host_bytes")),
        ("NVMe", finite_number(plan.get("nvme_bytes")), max_recorded(record, "nvme_bytes")),
    ]
    return [(name, (planned, peak)) for name, planned, peak in pairs if peak]


def planned_host_bytes(record: RunRecord) -> float | None:
    """A rank's share of its host's planned memory; on the CPU accelerator with the planned GPU memory."""
    plan = record.plan
    host, gpu = finite_number(plan.get("host_peak_bytes")), finite_number(plan.get("gpu_peak_bytes"))
    ranks = finite_number(plan.get("ranks_per_host")) or 1
    if host is None or gpu is None:
        return None
    pooled = plan.get("device_memory_is_host_memory") is True or not record.on_cpu
    return host / ranks if pooled else host / ranks + gpu


def max_recorded(record: RunRecord, *keys: str) -> float | None:
    """The highest value; None where none was recorded."""
    return max((value for _, value in record.points("step", *keys)), default=None)
