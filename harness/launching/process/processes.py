# SPDX-License-Identifier: Apache-2.0
"""Finds and ends the processes of a run, also those that lost their parents. Linux: reads /proc.

Knows nothing of ranks: session, descent or the variable HARNESS_RUN_DIR make a process part of a run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_EXITED_STATES = {"Z", "X", "x"}
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table. `start_ticks` is its start time: with the pid it identifies a process."""

    pid: int
    parent_pid: int
    session_id: int
    state: str
    start_ticks: int
    wait_status: int

    @property
    def has_exited(self) -> bool:
        """True for a zombie too: ended, but not reaped yet."""
        return self.state in _EXITED_STATES

    @property
    def exit_signal(self) -> int | None:
        """The signal that killed it, as long as it is a zombie; None when it exited by itself."""
        return os.WTERMSIG(self.wait_status) if self.has_exited and os.WIFSIGNALED(self.wait_status) else None


def read_process(pid: int) -> Process | None:
    """The process with this pid, or None."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19]), int(fields[49]))


def read_process_table() -> dict[int, Process]:
    """The process table."""
    processes = (read_process(pid) for pid in _list_pids())
    return {p.pid: p for p in processes if p is not None}


def find_run_processes(run_dir: Path, session: int) -> list[Process]:
    """Living processes that belong to a run: those of its session, their descendants, and any with its HARNESS_RUN_DIR.

    Never the caller nor its ancestors.
    """
    table = read_process_table()
    members = {p.pid for p in table.values() if p.session_id == session}
    variable = f"HARNESS_RUN_DIR={run_dir}".encode()
    members |= {pid for pid in table if variable in _read_environ(pid)}
    while children := {p.pid for p in table.values() if p.parent_pid in members and p.pid not in members}:
        members |= children
    members -= _ancestor_pids(os.getpid(), table)
    return [table[pid] for pid in sorted(members) if pid in table and not table[pid].has_exited]


def kill_all(find: Callable[[], list[Process]], grace_seconds: float, limit_seconds: float = 5.0) -> list[Process]:
    """SIGTERM, then SIGKILL after `grace_seconds`, until `find` finds none. Returns those left after the limit."""
    send_signal(find(), signal.SIGTERM)
    survivors = _wait_for_exit(find, grace_seconds)
    deadline = time.monotonic() + limit_seconds
    while survivors and time.monotonic() < deadline:
        send_signal(survivors, signal.SIGKILL)
        survivors = _wait_for_exit(find, 0.2)
    return survivors


def send_signal(processes: Iterable[Process], signum: int) -> None:
    """Send a signal to each process that still runs under its pid."""
    for process in processes:
        current = read_process(process.pid)
        if current is not None and current.start_ticks == process.start_ticks:
            try:
                os.kill(process.pid, signum)
            except (ProcessLookupError, PermissionError):
                continue


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Run in a child between fork and exec: the kernel sends it the signal when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)


def set_up_child() -> None:
    """Run in a child between fork and exec: the kernel kills it with this process, and SIGUSR1 stays pending in it.

    DeepSpeed's launcher would die of SIGUSR1 and take the ranks with it; `is_signal_pending` finds the blocked signal.
    """
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])


def is_signal_pending(pid: int, signum: int) -> bool:
    """Whether a signal was sent to a process that blocks it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    masks = [line.split()[1] for line in text.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(int(mask, 16) >> (signum - 1) & 1 for mask in masks)


def pids_with_open_file(file: Path) -> list[int]:
    """Processes of this machine that have a file open, as far as this user can see them."""
    target = str(file.resolve())
    return [pid for pid in _list_pids() if target in _list_open_files(pid)]


def find_mapped_files(prefix: str) -> set[str]:
    """Files whose path starts with `prefix` and that some process has mapped, as far as this user can see."""
    files: set[str] = set()
    for pid in _list_pids():
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        files |= {line[line.index(prefix) :].strip() for line in maps.splitlines() if prefix in line}
    return files


def _wait_for_exit(find: Callable[[], list[Process]], seconds: float) -> list[Process]:
    deadline = time.monotonic() + seconds
    survivors = find()
    while survivors and time.monotonic() < deadline:
        time.sleep(0.05)
        survivors = find()
    return survivors


def _list_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read_environ(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _list_open_files(pid: int) -> set[str]:
    files = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                files.add(os.readlink(descriptor))  # noqa: PTH115  (the caller compares plain strings)
    return files


def _ancestor_pids(pid: int, table: dict[int, Process]) -> set[int]:
    ancestors = {pid}
    while (process := table.get(pid)) is not None and process.parent_pid > 0 and process.parent_pid not in ancestors:
        ancestors.add(process.parent_pid)
        pid = process.parent_pid
    return ancestors
