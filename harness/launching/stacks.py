"""Asks the ranks of a hung run for their stacks. A rank writes them to `logs/stacks-NNNNN.txt` on SIGUSR2 (by
`faulthandler`, which needs neither the interpreter's lock nor a living event loop); on other hosts by its own clock.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.launching.hangs import Hang
from harness.launching.plan import LaunchPlan
from harness.launching.processes import read_process, send
from harness.launching.verdict import Status

_SECONDS = 3.0


def dump_stacks(plan: LaunchPlan, statuses: Mapping[int, Status], hang: Hang) -> Hang:
    """The hang, with the files in which stacks have appeared. A rank that a signal had stopped is let go on for it."""
    logs = plan.run_dir / "logs"
    files = {s.rank: logs / stacks_name(s.rank, plan.attempt) for s in statuses.values()}
    before = {rank: _size(file) for rank, file in files.items()}
    wanted = set()
    if plan.local:
        going = {s.rank: p for s in statuses.values() if not s.final and (p := read_process(s.pid)) and not p.gone}
        listening = {rank: p for rank, p in going.items() if files[rank].exists()}
        send(listening.values(), signal.SIGUSR2)
        send(listening.values(), signal.SIGCONT)
        wanted = set(listening)
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and any(_size(files[rank]) <= before[rank] for rank in wanted):
        time.sleep(0.05)
    time.sleep(0.2 if wanted else 0.0)  # the rest of what is being written
    written = tuple(file for file in files.values() if _size(file))
    return replace(hang, stacks=written)


def stacks_name(rank: int, attempt: int) -> str:
    """The file below `logs/`; `harness.runtime.watchdog` makes it."""
    return f"stacks-{rank:05d}.txt" if attempt == 1 else f"stacks-{rank:05d}-{attempt}.txt"


def remove_empty(run_dir: Path) -> None:
    """Remove the files that nothing was written to: those of ranks that were killed."""
    for file in (run_dir / "logs").glob("stacks-*.txt"):
        if not _size(file):
            file.unlink(missing_ok=True)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
