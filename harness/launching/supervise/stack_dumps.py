# SPDX-License-Identifier: Apache-2.0
"""Stack dumps of the ranks of a hung run. A rank writes its stacks to `logs/stacks-NNNNN.txt` on SIGUSR2, with
`faulthandler`, which needs neither the interpreter's lock nor an event loop; on other hosts by its own timer.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.launching.process.processes import read_process, send_signal
from harness.launching.setup.launch_plan import LaunchPlan
from harness.launching.supervise.hang_detector import Hang
from harness.run_records.rank_statuses import RankStatus

_DUMP_SECONDS = 3.0


def dump_stacks(plan: LaunchPlan, statuses: Mapping[int, RankStatus], hang: Hang) -> Hang:
    """The hang, with the files of stacks. A rank that a signal had stopped is continued to write them."""
    logs = plan.run_dir / "logs"
    files = {s.rank: logs / stacks_file_name(s.rank, plan.attempt) for s in statuses.values()}
    before = {rank: _file_size(file) for rank, file in files.items()}
    dumping_ranks = set[int]()
    if plan.local:
        unfinished = {
            s.rank: p for s in statuses.values() if not s.is_final and (p := read_process(s.pid)) and not p.has_exited
        }
        listening = {rank: p for rank, p in unfinished.items() if files[rank].exists()}
        send_signal(listening.values(), signal.SIGUSR2)
        send_signal(listening.values(), signal.SIGCONT)
        dumping_ranks = set(listening)
    deadline = time.monotonic() + _DUMP_SECONDS
    while time.monotonic() < deadline and any(_file_size(files[rank]) <= before[rank] for rank in dumping_ranks):
        time.sleep(0.05)
    time.sleep(0.2 if dumping_ranks else 0.0)  # the rest of what is being written
    stacks = tuple(file for file in files.values() if _file_size(file))
    return replace(hang, stacks=stacks)


def stacks_file_name(rank: int, attempt: int) -> str:
    """The file below `logs/`; `harness.runtime.watchdog` makes it."""
    return f"stacks-{rank:05d}.txt" if attempt == 1 else f"stacks-{rank:05d}-{attempt}.txt"


def remove_empty_dumps(run_dir: Path) -> None:
    """Remove the empty files: those of ranks that were killed."""
    for file in (run_dir / "logs").glob("stacks-*.txt"):
        if not _file_size(file):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


def _file_size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
