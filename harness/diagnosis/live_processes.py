# SPDX-License-Identifier: Apache-2.0
"""The processes of a job that stands still, on this machine: where each rank is, by `/proc`, py-spy and NCCL's RAS."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness.diagnosis.evidence.nccl_ras import describe_ras_report, query_ras
from harness.diagnosis.reader.followed_log import find_writers

_MAX_RANKS = 32
_STACK_SECONDS = 20.0
_STATES = {"T": "is stopped by a signal", "t": "is held by a debugger", "D": "waits for a disk", "Z": "has ended"}
_FRAME = re.compile(r"^ {4}(?P<function>\S+) \((?P<file>[^:()]+):(?P<line>\d+)\)", re.MULTILINE)


def describe_writers(file: Path) -> tuple[str, ...]:
    """Sentences about the ranks among the processes that write the log; empty where none is on this machine."""
    notes = [note for pid in sorted(find_writers(file)) if (note := _describe_rank(pid))][:_MAX_RANKS]
    with contextlib.suppress(OSError):
        notes += describe_ras_report(query_ras())
    return tuple(notes)


def _describe_rank(pid: int) -> str:
    """`rank 1 (pid 812) is stopped by a signal`; empty for a process that is no rank."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    rank = next((part[5:].decode() for part in environment if part.startswith(b"RANK=")), "")
    if not rank.isdecimal():
        return ""
    place = next(_stack_of(pid), "")
    what = _STATES.get(state, f"is in {place}" if place else "runs (`pip install py-spy` shows where)")
    return f"rank {rank} (pid {pid}) {what}"


def _stack_of(pid: int) -> Iterator[str]:
    """The innermost frames of the process's main thread, where py-spy is installed and may look."""
    program = shutil.which("py-spy")
    if program is None:
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [program, "dump", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_STACK_SECONDS, check=False)  # noqa: S603
        main = done.stdout.partition('"MainThread"')[2]
        for frame in _FRAME.finditer(main):
            yield f"{frame['function']} ({frame['file']}:{frame['line']})"
