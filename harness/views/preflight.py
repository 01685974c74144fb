# SPDX-License-Identifier: Apache-2.0
"""The answers of the hosts, as a table with one column per host, and as JSON. Judges nothing; gates do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.findings import Finding, Report
from harness.hostinfo.gpu_health import count_most_links, find_gpu_problems, select_gpus
from harness.hostinfo.host_survey import HostFacts, Survey
from harness.launching.process import shm
from harness.launching.programs.allreduce_check import AllReduceResult
from harness.units import format_bytes
from harness.views.findings_text import format_summary
from harness.views.style import Style

_MAX_COLUMNS = 6
_MAX_CELL_WIDTH = 24
_EMPTY = "-"
_STATE_LABELS = {"unreachable": "not reached", "no answer in time": "too slow", "no probe": "no probe"}


@dataclass(frozen=True, slots=True)
class _FactRow:
    """One fact: the cell of each host, and the hosts that differ from most."""

    name: str
    cells: tuple[str, ...]
    outliers: frozenset[int]


def render_survey(survey: Survey, style: Style) -> str:
    """One row per fact, one column per host; a cell that differs from most of the others is marked. Of many
    hosts those that differ and the first ones are shown, the others are counted.
    """
    rows = [_ssh_row(survey), *(_build_row(survey, *row) for row in _fact_rows(survey))]
    rows = [row for row in rows if set(row.cells) != {_EMPTY}]
    columns = _select_columns(len(survey.hosts), set().union(*(row.outliers for row in rows)))
    table = [["", *(survey.hosts[i].name for i in columns)]]
    cut = _MAX_CELL_WIDTH - 3
    for row in rows:
        cells = (row.cells[i] for i in columns)
        table.append([row.name, *(c if len(c) <= _MAX_CELL_WIDTH else f"{c[:cut]}..." for c in cells)])
    marks = [[False] * len(table[0]), *([False, *(i in row.outliers for i in columns)] for row in rows)]
    left = len(survey.hosts) - len(columns)
    more = [f"{left} more host{'s' if left > 1 else ''} with the majority's values"] if left else []
    return "\n".join([*_align_lines(table, marks, style), *more, *_network_lines(survey)])


def _ssh_row(survey: Survey) -> _FactRow:
    lost = frozenset(i for i, host in enumerate(survey.hosts) if not host.ok)
    cells = (f"{host.seconds:.1f} s" if host.ok else _STATE_LABELS.get(host.state, host.state) for host in survey.hosts)
    return _FactRow("ssh", tuple(cells), lost)


def _build_row(survey: Survey, name: str, cell: Callable[[HostFacts], str], same: bool) -> _FactRow:
    cells = tuple(cell(host) if host.ok else _EMPTY for host in survey.hosts)
    usual = [c for c, _ in Counter(c for c in cells if c != _EMPTY).most_common(1)]
    odd = (i for i, c in enumerate(cells) if same and c not in (_EMPTY, *usual))
    return _FactRow(name, cells, frozenset(odd))


def _select_columns(count: int, odd: set[int]) -> list[int]:
    """The hosts with a column: all where they are few, else the first and those that differ."""
    if count <= _MAX_COLUMNS:
        return list(range(count))
    first = [i for i in range(count) if i not in odd][:1]
    return sorted({*first, *sorted(odd)[: _MAX_COLUMNS - 1]})


def _align_lines(table: Sequence[Sequence[str]], marks: Sequence[Sequence[bool]], style: Style) -> list[str]:
    """A star after a cell that differs; other cells of its column get a blank, so that columns align without colour."""
    widths = [max(len(row[column]) for row in table) + 2 for column in range(len(table[0]))]
    lines = []
    for row, odd in zip(table, marks, strict=True):
        cells = []
        for cell, width, is_odd in zip(row, widths, odd, strict=True):
            plain = (cell + "*" if is_odd else cell).ljust(width)
            cells.append(style.paint(plain, "red") if is_odd else plain)
        lines.append("".join(cells).rstrip())
    return lines


def _fact_rows(survey: Survey) -> list[tuple[str, Callable[[HostFacts], str], bool]]:
    """Name, text of a cell, and whether all hosts should have the same."""
    rows: list[tuple[str, Callable[[HostFacts], str], bool]] = [
        ("python", lambda h: h.python, True),
        ("harness", lambda h: (h.code or "none")[:8], True),
    ]
    packages = dict.fromkeys(name for host in survey.reachable_hosts for name in host.packages)
    rows += [(name, lambda h, name=name: h.packages.get(name) or "none", True) for name in packages]  # type: ignore[misc]
    rows += [
        ("accelerators", _format_devices, True),
        ("torch can use", lambda h: _EMPTY if h.torch is None else str(h.torch.count), True),
        ("GPU health", _format_gpu_health, True),
        ("slots", lambda h: str(h.slots), True),
        ("cores", lambda h: str(h.cores), True),
        ("memory", lambda h: format_bytes(h.memory_total), False),
        ("available", lambda h: format_bytes(h.memory_available), False),
        ("lockable", lambda h: "no limit" if h.memlock is None else format_bytes(h.memlock), True),
        (str(shm.FOLDER), lambda h: "none" if h.shm is None else f"{format_bytes(h.shm)} free", False),
        ("open files", lambda h: "no limit" if h.nofile is None else str(h.nofile), True),
        ("compiler", lambda h: "yes" if h.compiler else "none", True),
        ("nvcc", lambda h: _EMPTY if h.nvcc is None else "yes" if h.nvcc else "none", True),
        ("libaio", lambda h: _EMPTY if h.libaio is None else "yes" if h.libaio else "none", True),
    ]
    for key in dict.fromkeys(key for host in survey.reachable_hosts for key in host.folders):
        rows.append((key.split(".")[-1], lambda h, key=key: _format_folder(h, key), False))  # type: ignore[misc]
    return [
        *rows,
        ("sees it", lambda h: "yes" if h.sees_run else "no", True),
        ("clock", _format_clock_skew, False),
        ("network", lambda h: " ".join(i.name for i in h.networks.values()) or "none", True),
    ]


def _format_devices(host: HostFacts) -> str:
    kinds = Counter(host.accelerators)
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "none"


def _format_gpu_health(host: HostFacts) -> str:
    if host.gpus is None:
        return _EMPTY
    gpus = select_gpus(host.gpus, host.devices or range(host.slots))
    most_links = count_most_links(gpus)
    unwell = sum(bool(find_gpu_problems(gpu, most_links[gpu.name])) for gpu in gpus)
    return "not read" if not gpus else f"{unwell} with problems" if unwell else "ok"


def _format_folder(host: HostFacts, key: str) -> str:
    folder = host.folders.get(key)
    return _EMPTY if folder is None or folder.free is None else f"{format_bytes(folder.free)} {folder.filesystem}"


def _format_clock_skew(host: HostFacts) -> str:
    low, high = host.skew
    if low <= 0 <= high:
        return f"+-{max(-low, high):.1f} s"
    return f"{low if low > 0 else high:+.1f} s"


def _network_lines(survey: Survey) -> list[str]:
    if len(survey.reachable_hosts) < 2:
        return []
    lines = [""]
    tried = {link.host for link in survey.links}
    if tried:
        reached = tried - {link.host for link in survey.links if not link.ok}
        lines.append(f"Port {survey.port} of {survey.hosts[0].name}: reached from {len(reached)} of {len(tried)} hosts")
    if survey.shared_interface:
        lines.append(
            f"Network: {survey.shared_interface} is the only shared interface; a launch sets it for gloo and NCCL"
        )
    return lines if len(lines) > 1 else []


def allreduce_lines(summed: AllReduceResult | None) -> list[str]:
    """The result of an all-reduce over all ranks, one line per size."""
    if summed is None or not summed.sizes:
        return []
    hosts = len(set(summed.hosts))
    lines = ["", f"All-reduce over {summed.world} ranks on {hosts} host{'s' if hosts > 1 else ''} by {summed.backend}"]
    for size in summed.sizes:
        rate = f"{size.bus / 1e9:.2f} GB/s over the slowest link"
        lines.append(f"  {format_bytes(size.bytes):>12}  {size.seconds * 1e3:9.2f} ms  {rate}")
    return lines


def format_totals(survey: Survey, report: Report, summed: AllReduceResult | None, style: Style) -> str:
    """The last line: the numbers of findings and of hosts that answered, and that nothing was trained."""
    hosts = len(survey.hosts)
    answers = f"{len(survey.reachable_hosts)} of {hosts} host{'s' if hosts > 1 else ''} answered"
    tail = "No rank was started" if summed is None else "Nothing was trained"
    return f"{format_summary([report], style)}. {answers}. {tail}"


def survey_as_json(
    survey: Survey, findings: Sequence[Finding], code: int, summed: AllReduceResult | None = None
) -> str:
    """The survey for programs, with the full answer of each host."""
    body: dict[str, Any] = {
        "format_version": 1,
        "exit_code": code,
        "totals": {
            "hosts": len(survey.hosts),
            "answered": len(survey.reachable_hosts),
            "errors": sum(f.is_error for f in findings),
            "warnings": sum(f.severity == "warning" for f in findings),
        },
        "findings": [finding.to_json() for finding in findings],
        "network": {"interface": survey.shared_interface, "master_address": survey.master_address, "port": survey.port},
        "hosts": [
            asdict(host) | {"interfaces": [{"name": i.name, "address": str(i.address)} for i in host.interfaces]}
            for host in survey.hosts
        ],
        "links": [asdict(link) for link in survey.links],
        "all_reduce": asdict(summed) if summed else None,
    }
    return json.dumps(body, indent=2)
