# SPDX-License-Identifier: Apache-2.0
"""CPU seconds by test and module, with those of all processes below: `python -m pytest -p tests.support.cpu_seconds ...`.

Seconds of the clock on a shared machine say who else was busy. `CPU_SECONDS=file.jsonl` takes a line a test, {"test",
"cpu" in seconds, "wall" in seconds}; without it the modules are printed at the end, the dearest first.
"""

from __future__ import annotations

import collections
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
_spent: dict[str, float] = collections.defaultdict(float)


def tree_seconds(root: int) -> float:
    """CPU seconds of a process, those below it, and those of them that ended and were waited for."""
    seconds, below = {}, collections.defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        pid = int(entry.parent.name)
        seconds[pid] = sum(map(int, fields[11:15])) / TICKS
        below[int(fields[1])].append(pid)
    total, left = 0.0, [root]
    while left:
        pid = left.pop()
        total += seconds.get(pid, 0.0)
        left += below[pid]
    return total


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure one test with its fixtures; what is shared counts for the test that asks first."""
    cpu, wall = tree_seconds(os.getpid()), time.monotonic()
    result = yield
    cpu, wall = max(0.0, tree_seconds(os.getpid()) - cpu), time.monotonic() - wall
    _spent[item.nodeid.partition("::")[0]] += cpu
    if file := os.environ.get("CPU_SECONDS"):
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"test": item.nodeid, "cpu": round(cpu, 2), "wall": round(wall, 2)}) + "\n")
    return result


def pytest_terminal_summary(terminalreporter) -> None:
    """Print the modules, the dearest first; a worker of pytest-xdist writes only its file."""
    for module, spent in sorted(_spent.items(), key=lambda pair: -pair[1])[:40]:
        terminalreporter.write_line(f"{spent:8.1f} s of CPU {module}")
