# SPDX-License-Identifier: Apache-2.0
"""The heat map: busy time of each rank over the run, against its peers. Slow cells show their figure.

One row a rank, or a group of them where there are more than fit; one column a stretch of the run. Reads a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from harness.run_records.run_files import Line
from harness.run_records.run_record import RunRecord
from harness.units import finite_number, format_bytes, format_seconds
from harness.views.report.html_elements import Cell, escape, number_cell, render_details, render_table

_MAX_ROWS, _MAX_COLUMNS = 64, 24
_SLOW_RATIO = 0.20
"""The limit of the straggler detector."""
HeatmapRow = tuple[str, list[float | None]]


def render_ranks(record: RunRecord) -> str:
    """The map, with a table of the ranks' medians. Nothing where ranks were never compared."""
    lines = [line for line in record.lines_of("ranks") if _busy_seconds(line)]
    world = max((len(_busy_seconds(line)) for line in lines), default=0)
    if world < 2:
        return ""
    stretches = _split_stretches(lines)
    rows = _group_rows(_slowdown_ratios(stretches, world), _hosts_of(record, world))
    legend = (
        "Busy time of a step, without waiting for others, against the median of all ranks at that time. Darker is "
        f"slower; figures of {100 * _SLOW_RATIO:.0f} % or more are shown."
    )
    figures = render_details("The ranks in figures", _render_table(lines, record, world))
    card = f'<div class="card"><p class="quiet">{legend}</p>{_render_heatmap(rows, stretches)}</div>'
    return f"<h2>Busy time by rank</h2>{card}{figures}"


def _busy_seconds(line: Line) -> list[float | None]:
    values = line.get("busy") if isinstance(line.get("busy"), list) else line.get("seconds")
    return [finite_number(v) for v in values] if isinstance(values, list) else []


def _split_stretches(lines: Sequence[Line]) -> list[list[Line]]:
    size = -(-len(lines) // _MAX_COLUMNS)
    return [list(lines[i : i + size]) for i in range(0, len(lines), size)]


def _slowdown_ratios(stretches: Sequence[Sequence[Line]], world: int) -> list[list[float | None]]:
    """For each rank and stretch, the median of its busy time over the median of all ranks, less 1."""
    columns: list[list[float | None]] = [[] for _ in range(world)]
    for stretch in stretches:
        ratios: list[list[float]] = [[] for _ in range(world)]
        for busy in map(_busy_seconds, stretch):
            known = [v for v in busy if v is not None]
            middle = median(known) if known else 0.0
            for rank, seconds in enumerate(busy):
                if seconds is not None and middle > 0:
                    ratios[rank].append(seconds / middle - 1)
        for column, values in zip(columns, ratios, strict=True):
            column.append(median(values) if values else None)
    return columns


def _hosts_of(record: RunRecord, world: int) -> list[str]:
    names = record.header.get("hosts")
    hosts = [str(h) for h in names] if isinstance(names, list) else []
    return [hosts[rank] if rank < len(hosts) else "" for rank in range(world)]


def _group_rows(ratios: Sequence[list[float | None]], hosts: Sequence[str]) -> list[HeatmapRow]:
    """One row a rank; with more ranks than rows, neighbours share one, which shows its slowest."""
    size = -(-len(ratios) // _MAX_ROWS)
    rows: list[HeatmapRow] = []
    for first in range(0, len(ratios), size):
        group = ratios[first : first + size]
        last = first + len(group) - 1
        name = f"rank {first}" if first == last else f"ranks {first}-{last}"
        places = sorted(set(hosts[first : last + 1]) - {""})
        where = f" on {places[0]}" if len(places) == 1 else f" on {len(places)} hosts" if places else ""
        columns = zip(*group, strict=True)
        rows.append((name + where, [max((v for v in column if v is not None), default=None) for column in columns]))
    return rows


def _render_heatmap(rows: Sequence[HeatmapRow], stretches: Sequence[Sequence[Line]]) -> str:
    ends = [str(stretch[-1].get("step", "?")) for stretch in stretches]
    body = []
    for name, ratios in rows:
        cells = "".join(_render_cell(name, ratio, end) for ratio, end in zip(ratios, ends, strict=True))
        body.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    first_and_last = f"<span>{escape(ends[0])}</span><span>{escape(ends[-1])}</span>"
    edge = f'<tr><th scope="row">step</th><td class="edge" colspan="{len(ends)}">{first_and_last}</td></tr>'
    return f'<div class="scroll" tabindex="0"><table class="heat"><tbody>{"".join(body)}{edge}</tbody></table></div>'


def _render_cell(name: str, ratio: float | None, end: str) -> str:
    if ratio is None:
        return '<td class="none"></td>'
    level = max(0, min(8, round(8 * ratio / 0.5)))
    text = f"{100 * ratio:.0f}" if ratio >= _SLOW_RATIO - 1e-9 else ""
    title = escape(f"{name}, up to step {end}: {100 * ratio:+.0f}%", quote=True)
    return f'<td class="h{level}" title="{title}">{text}</td>'


def _render_table(lines: Sequence[Line], record: RunRecord, world: int) -> str:
    """Medians over the run, the slowest first; at most a hundred ranks."""
    hosts, parts = _hosts_of(record, world), ("data", "compute", "io", "host")
    medians = {key: _medians(lines, key, world) for key in ("busy", "seconds", *parts, "memory_host_bytes")}
    busy = [v if v is not None else s for v, s in zip(medians["busy"], medians["seconds"], strict=True)]
    order = sorted(range(world), key=lambda rank: -(busy[rank] or 0.0))[:100]
    rows: list[list[str | Cell]] = []
    for rank in order:
        cells: list[str | Cell] = [number_cell(str(rank)), number_cell(_format_optional_seconds(busy[rank]))]
        cells += [number_cell(_format_optional_seconds(medians[part][rank])) for part in parts]
        size = medians["memory_host_bytes"][rank]
        rows.append([*cells, number_cell("" if size is None else format_bytes(size)), hosts[rank]])
    head = ["rank", "busy", "data", "compute", "swapping", "host", "memory", "on"]
    return render_table(head, rows, "Medians of a step over the run, the slowest rank first")


def _medians(lines: Sequence[Line], key: str, world: int) -> list[float | None]:
    columns: list[list[float]] = [[] for _ in range(world)]
    for line in lines:
        values = line.get(key)
        for rank, value in enumerate(values[:world] if isinstance(values, list) else []):
            known = finite_number(value)
            if known is not None:
                columns[rank].append(known)
    return [median(column) if column else None for column in columns]


def _format_optional_seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)
