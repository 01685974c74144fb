"""Memory planned beside measured, tier by tier, and the rows of the plan. Counts nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.records.record import Record, number
from harness.units import format_bytes, format_seconds
from harness.views.measured import most, planned_host
from harness.views.plan_plot import memory_svg
from harness.views.plots import pair_bars
from harness.views.report.charts import Chart, Series
from harness.views.report.html import Cell, details, num, table, why
from harness.views.report.training import gib

_PLANNED, _MEASURED = 5, 1
Bar = tuple[str, float, str, int]


def memory_bars(record: Record) -> str:
    """Each tier: what was planned, what was measured, and how far they are apart."""
    host = most(record, "memory_host_peak_bytes", "memory_host_bytes")
    nvme = number(record.plan.get("nvme_bytes"))
    bars = [
        *_pair("host memory of a rank", planned_host(record), host),
        *_gpu(record),
        *_pair("NVMe of a host", nvme, most(record, "nvme_bytes"), "its host"),
    ]
    if not bars:
        return ""
    drawn = pair_bars([bar[:3] for bar in bars], [bar[3] for bar in bars])
    note = _CPU_NOTE if record.on_cpu else ""
    return f'<div class="card">{drawn}{note}</div>'


_CPU_NOTE = (
    '<p class="quiet">On the CPU accelerator what would be GPU memory is host memory. Planned is the peak within a '
    "step; measured is the resident set, between steps where no peak was recorded.</p>"
)


def _pair(tier: str, planned: float | None, measured: float | None, who: str = "rank 0") -> list[Bar]:
    bars: list[Bar] = []
    if planned:
        bars.append((f"{tier}, planned", planned, format_bytes(planned), _PLANNED))
    if measured:
        apart = f" ({100 * (measured / planned - 1):+.0f}%)" if planned else ""
        bars.append((f"{tier}, measured on {who}", measured, format_bytes(measured) + apart, _MEASURED))
    return bars


def _gpu(record: Record) -> list[Bar]:
    peak = most(record, "memory_gpu_peak_bytes", "memory_gpu_bytes")
    if peak is None:
        return []
    bars = _pair("GPU memory of a rank", number(record.plan.get("gpu_peak_bytes")), peak)
    reserved = most(record, "memory_gpu_reserved_bytes")
    return bars + ([("GPU, reserved by the allocator", reserved, format_bytes(reserved), 3)] if reserved else [])


def memory_charts(record: Record) -> list[Chart]:
    """Memory over the run, with the plan as a level line."""
    host = [Series("resident", gib(record.points("step", "memory_host_bytes")), colour=1)]
    charts = [Chart("Host memory of rank 0", host, "GiB", zero=True)]
    planned = number(record.plan.get("gpu_peak_bytes"))
    gpu = [
        Series("allocated", gib(record.points("step", "memory_gpu_bytes")), colour=1),
        Series("reserved", gib(record.points("step", "memory_gpu_reserved_bytes")), colour=3, dash=1),
        Series("peak so far", gib(record.points("step", "memory_gpu_peak_bytes")), colour=2, dash=2),
        Series("peak, planned", [(0.0, planned / 2**30)] if planned else [], "rule", 5, 1),
    ]
    if any(s.points for s in gpu[:3]):
        charts.append(Chart("GPU memory of rank 0", gpu, "GiB", zero=True))
    swapped = gib(record.points("step", "nvme_bytes"))
    if any(y for _, y in swapped):
        charts.append(Chart("Swap files on NVMe", [Series("swap files", swapped)], "GiB", zero=True))
    return [chart for chart in charts if any(s.points for s in chart.series)]


def plan_tables(record: Record) -> str:
    """The rows of the plan, and what else would have fitted, as a picture and as a table."""
    plan = record.plan
    picture = memory_svg(plan)
    drawn = f'<div class="scroll" tabindex="0"><div class="wide">{picture}</div></div>' if picture else ""
    rungs = _alternatives(plan)
    body = details("What else would have fitted", drawn + rungs) if drawn or rungs else ""
    return body + _rows(plan)


def _rows(plan: Mapping[str, Any]) -> str:
    rows = [row for row in _list(plan.get("rows")) if isinstance(row, dict)]
    if not rows:
        return ""
    lines: list[list[str | Cell]] = []
    for row in rows[:200]:
        size = number(row.get("bytes_per_rank"))
        cells: list[str | Cell] = [str(row.get("tier", "")), str(row.get("what", ""))]
        cells += [num("" if size is None else format_bytes(size)), why(str(row.get("formula", "")))]
        lines.append([*cells, why(str(row.get("source", "")))])
    return details("Every row of the plan", table(["tier", "what", "a rank", "formula", "seen in"], lines))


def _alternatives(plan: Mapping[str, Any]) -> str:
    rungs = [rung for rung in _list(plan.get("alternatives")) if isinstance(rung, dict)]
    if not rungs:
        return ""
    timed = any(number(rung.get("step_seconds")) for rung in rungs)
    lines: list[list[str | Cell]] = []
    for rung in rungs[:100]:
        sizes = (number(rung.get(key)) for key in ("gpu_peak_bytes", "host_peak_bytes", "nvme_bytes"))
        cells: list[str | Cell] = [
            str(rung.get("title", "")),
            *(num(format_bytes(size) if size else "-") for size in sizes),
        ]
        seconds = number(rung.get("step_seconds"))
        lines.append([*cells, *([num(format_seconds(seconds) if seconds else "-")] if timed else [])])
    chosen = next((i for i, rung in enumerate(rungs) if rung.get("chosen")), -1)
    head = ["alternative", "GPU a rank", "host", "NVMe", *(["step"] if timed else [])]
    return table(head, lines, marked=chosen)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
