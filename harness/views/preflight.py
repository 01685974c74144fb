"""What the hosts said, as a table of one column a host, and as JSON. Judges nothing; gates do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.facts.survey import HostFacts, Survey
from harness.findings import Finding
from harness.launching import shm
from harness.launching.allreduce import AllReduce
from harness.units import format_bytes
from harness.views.machine_readable import finding_json
from harness.views.style import Style

_MOST_COLUMNS = 6
_MOST_WIDTH = 24
_NOTHING = "-"
_WORDS = {"unreachable": "not reached", "no answer in time": "too slow", "no probe": "no probe"}


@dataclass(frozen=True, slots=True)
class _Row:
    """One fact: what stands in the cell of each host, and which of them are odd ones."""

    name: str
    cells: tuple[str, ...]
    odd: frozenset[int]


def text(survey: Survey, style: Style) -> str:
    """A row a fact, a column a host; a cell that differs from most of the others is marked. Many hosts: the odd ones
    and the first are shown, the others are counted.
    """
    rows = [_reached(survey), *(_row(survey, *row) for row in _rows(survey))]
    rows = [row for row in rows if set(row.cells) != {_NOTHING}]
    shown = _columns(len(survey.hosts), set().union(*(row.odd for row in rows)))
    table = [["", *(survey.hosts[i].name for i in shown)]]
    table += [[row.name, *(_cut(row.cells[i]) for i in shown)] for row in rows]
    marks = [[False] * len(table[0]), *([False, *(i in row.odd for i in shown)] for row in rows)]
    left = len(survey.hosts) - len(shown)
    more = [f"{left} more host{'s' if left > 1 else ''} like most of these"] if left else []
    return "\n".join([*_aligned(table, marks, style), *more, *_network(survey)])


def _reached(survey: Survey) -> _Row:
    lost = frozenset(i for i, host in enumerate(survey.hosts) if not host.ok)
    return _Row("ssh", tuple(map(_reach, survey.hosts)), lost)


def _row(survey: Survey, name: str, cell: Callable[[HostFacts], str], same: bool) -> _Row:
    cells = tuple(cell(host) if host.ok else _NOTHING for host in survey.hosts)
    usual = [c for c, _ in Counter(c for c in cells if c != _NOTHING).most_common(1)]
    odd = (i for i, c in enumerate(cells) if same and c not in (_NOTHING, *usual))
    return _Row(name, cells, frozenset(odd))


def _columns(count: int, odd: set[int]) -> list[int]:
    """Which hosts get a column: all where they are few, else the first and the odd ones."""
    if count <= _MOST_COLUMNS:
        return list(range(count))
    first = [i for i in range(count) if i not in odd][:1]
    return sorted({*first, *sorted(odd)[: _MOST_COLUMNS - 1]})


def _aligned(table: Sequence[Sequence[str]], marks: Sequence[Sequence[bool]], style: Style) -> list[str]:
    """A star behind what is odd, in every row of its column, so that columns stay straight without colour."""
    widths = [max(len(row[column]) for row in table) + 2 for column in range(len(table[0]))]
    lines = []
    for row, odd in zip(table, marks, strict=True):
        cells = []
        for cell, width, is_odd in zip(row, widths, odd, strict=True):
            plain = (cell + "*" if is_odd else cell).ljust(width)
            cells.append(style.paint(plain, "red") if is_odd else plain)
        lines.append("".join(cells).rstrip())
    return lines


def _reach(host: HostFacts) -> str:
    return f"{host.seconds:.1f} s" if host.ok else _WORDS.get(host.state, host.state)


def _rows(survey: Survey) -> list[tuple[str, Callable[[HostFacts], str], bool]]:
    """Name, what stands in a cell, and whether all hosts should have the same."""
    rows: list[tuple[str, Callable[[HostFacts], str], bool]] = [
        ("python", lambda h: h.python, True),
        ("harness", lambda h: (h.code or "none")[:8], True),
    ]
    packages = dict.fromkeys(name for host in survey.answered for name in host.packages)
    rows += [(name, lambda h, name=name: h.packages.get(name) or "none", True) for name in packages]  # type: ignore[misc]
    rows += [
        ("accelerators", _devices, True),
        ("torch can use", lambda h: _NOTHING if h.torch is None else str(h.torch.count), True),
        ("slots", lambda h: str(h.slots), True),
        ("cores", lambda h: str(h.cores), True),
        ("memory", lambda h: format_bytes(h.memory_total), False),
        ("available", lambda h: format_bytes(h.memory_available), False),
        ("lockable", lambda h: "no limit" if h.memlock is None else format_bytes(h.memlock), True),
        (str(shm.FOLDER), lambda h: "none" if h.shm is None else f"{format_bytes(h.shm)} free", False),
        ("open files", lambda h: "no limit" if h.nofile is None else str(h.nofile), True),
        ("compiler", lambda h: "yes" if h.compiler else "none", True),
        ("libaio", lambda h: _NOTHING if h.libaio is None else "yes" if h.libaio else "none", True),
    ]
    for key in dict.fromkeys(key for host in survey.answered for key in host.folders):
        rows.append((key.split(".")[-1], lambda h, key=key: _folder(h, key), False))  # type: ignore[misc]
    return [
        *rows,
        ("sees it", lambda h: "yes" if h.sees_run else "no", True),
        ("clock", _clock, False),
        ("network", _interfaces, True),
    ]


def _devices(host: HostFacts) -> str:
    kinds = Counter(host.accelerators)
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "none"


def _folder(host: HostFacts, key: str) -> str:
    folder = host.folders.get(key)
    return _NOTHING if folder is None or folder.free is None else f"{format_bytes(folder.free)} {folder.filesystem}"


def _clock(host: HostFacts) -> str:
    low, high = host.skew
    if low <= 0 <= high:
        return f"+-{max(-low, high):.1f} s"
    return f"{low if low > 0 else high:+.1f} s"


def _interfaces(host: HostFacts) -> str:
    return " ".join(i.name for i in host.networks.values()) or "none"


def _network(survey: Survey) -> list[str]:
    if len(survey.answered) < 2:
        return []
    lines = [""]
    tried = len({link.host for link in survey.links})
    reached = sum(all(x.ok for x in survey.links if x.host == host) for host in {x.host for x in survey.links})
    if tried:
        lines.append(f"Port {survey.port} of {survey.hosts[0].name}: reached from {reached} of {tried} hosts")
    if survey.interface:
        lines.append(f"Network: {survey.interface} is the only one that all share; a launch sets it for gloo and NCCL")
    return lines if len(lines) > 1 else []


def _cut(cell: str) -> str:
    return cell if len(cell) <= _MOST_WIDTH else cell[: _MOST_WIDTH - 3] + "..."


def bandwidth(summed: AllReduce | None) -> list[str]:
    """What an all-reduce over all ranks came to, a line for each size."""
    if summed is None or not summed.sizes:
        return []
    hosts = len(set(summed.hosts))
    lines = ["", f"All-reduce over {summed.world} ranks on {hosts} host{'s' if hosts > 1 else ''} by {summed.backend}"]
    for size in summed.sizes:
        rate = f"{size.bus / 1e9:.2f} GB/s over the slowest link"
        lines.append(f"  {format_bytes(size.bytes):>12}  {size.seconds * 1e3:9.2f} ms  {rate}")
    return lines


def as_json(survey: Survey, findings: Sequence[Finding], code: int, summed: AllReduce | None = None) -> str:
    """The same for programs, with everything that each host said."""
    body: dict[str, Any] = {
        "format_version": 1,
        "exit_code": code,
        "totals": {
            "hosts": len(survey.hosts),
            "answered": len(survey.answered),
            "errors": sum(f.is_error for f in findings),
            "warnings": sum(f.severity == "warning" for f in findings),
        },
        "findings": [finding_json(finding) for finding in findings],
        "network": {"interface": survey.interface, "master_address": survey.master_address, "port": survey.port},
        "hosts": [
            {k: v for k, v in asdict(host).items() if k != "interfaces"} | _addresses(host) for host in survey.hosts
        ],
        "links": [asdict(link) for link in survey.links],
        "all_reduce": asdict(summed) if summed else None,
    }
    return json.dumps(body, indent=2)


def _addresses(host: HostFacts) -> dict[str, Any]:
    return {"interfaces": [{"name": i.name, "address": str(i.address)} for i in host.interfaces]}
