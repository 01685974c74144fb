# SPDX-License-Identifier: Apache-2.0
"""The cause of a run's end: from its log, its supervisor and its ranks."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from harness.diagnosis import diagnose
from harness.diagnosis.catalogue import causes_by_id
from harness.diagnosis.diagnosis_types import Diagnosis
from harness.diagnosis.evidence.nccl_ras import describe_ras_report, query_ras
from harness.diagnosis.reader.followed_log import FollowedLog, find_writers
from harness.diagnosis.reader.log_files import find_logs
from harness.finding_pages import is_engine_check
from harness.locks import RUN_LOCK, current_holder
from harness.run_records.rank_statuses import read_statuses
from harness.run_records.run_files import json_of
from harness.units import format_seconds
from harness.verdicts import Verdict, read_verdict

_FILE = "engine_checks.json"
_MAX_TEXT = 400
_ERROR = "EngineDifferenceError"
"""The error of a training run that stopped: its log says the same as the file."""

_MAX_RANKS = 32
_STACK_SECONDS = 20.0
"""For the stacks of all ranks together."""
_STATES = {"T": "is stopped by a signal", "t": "is held by a debugger", "D": "waits for a disk", "Z": "has ended"}
_FRAME = re.compile(r"^ {4}(?P<function>\S+) \((?P<file>[^:()]+):(?P<line>\d+)\)", re.MULTILINE)


def diagnose_run(*names: str | Path) -> Diagnosis:
    """The first cause in the logs of one job, or in a run directory after the verdict of its supervisor. Raises
    UserError where there is no log to read, OSError where reading one fails.
    """
    logs = find_logs([str(name) for name in names])
    verdict = read_verdict(logs.run_dir) if logs.run_dir else None
    hosts = {rank: s.host for rank, s in read_statuses(logs.run_dir).items() if s.host} if logs.run_dir else {}
    diagnosis = diagnose(logs.streams(), plan=logs.plan, hosts=hosts, verdict=verdict)
    diagnosis = add_engine_differences(diagnosis, [*logs.files, *([logs.run_dir] if logs.run_dir else [])])
    if logs.note:
        diagnosis = replace(diagnosis, notes=(*diagnosis.notes, logs.note))
    if diagnosis.state == "no failure seen" and logs.run_dir and current_holder(logs.run_dir / RUN_LOCK) is not None:
        return replace(diagnosis, title="the run is still running, and its log shows no failure so far")
    return diagnosis


def diagnose_followed(file: Path, stall_seconds: float) -> Diagnosis:
    """The first cause in the log of a running job of any launcher, once the job has ended, or has printed nothing for
    `stall_seconds`. Raises OSError where reading fails.
    """
    log = FollowedLog(file, stall_seconds)
    diagnosis = diagnose([cast("BinaryIO", log)])
    if log.ending == "no writer":
        return replace(diagnosis, notes=(*diagnosis.notes, "no process of this machine writes the log any more"))
    if log.ending != "stall" or diagnosis.state not in ("no failure seen", "empty"):
        return diagnosis
    if not file.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    if next(find_writers(file), None) is None:
        title = f"the log has not grown for {format_seconds(stall_seconds)}, and no process of this machine writes it"
        return replace(diagnosis, title=title)
    title = f"the job has printed nothing for {format_seconds(stall_seconds)}, and shows no failure"
    cause = causes_by_id()["LG076"]
    notes = (*describe_writers(file), *diagnosis.notes)
    return replace(diagnosis, state="failed", confidence="likely", cause=cause.id, title=title, notes=notes)


def diagnose_failure(run_dir: Path, verdict: Verdict) -> Diagnosis | None:
    """The diagnosis of a failed run; None where a rank reported a user error, or the log shows nothing."""
    if verdict.state != "failed" or verdict.refused:
        return None
    try:
        diagnosis = diagnose_run(run_dir)
    except Exception:  # whatever is wrong with the diagnosis, the verdict is shown
        return None
    return diagnosis if diagnosis.state == "failed" else None


def add_engine_differences(diagnosis: Diagnosis, logs: Sequence[Path]) -> Diagnosis:
    """The diagnosis with the differences as notes; where the log shows no failure, the first of them is the cause."""
    folders = dict.fromkeys(log if log.is_dir() else log.parent for log in logs)
    lists = (json_of(folder / _FILE).get("differences") for folder in folders)
    rows = (map(_parse_row, reversed(found)) for found in lists if isinstance(found, list))
    by_check = {row["gate"]: row for row in itertools.chain.from_iterable(rows) if row is not None}
    if not by_check or _ERROR in diagnosis.message:
        return diagnosis
    notes = tuple(f"`{_FILE}` has {row['gate']}: {row['message']}" for row in by_check.values())
    if diagnosis.state != "no failure seen" or diagnosis.cause:
        return replace(diagnosis, notes=(*diagnosis.notes, *notes))
    cause, first = next(iter(by_check.items()))
    return replace(
        diagnosis,
        state="failed",
        confidence="certain",
        cause=cause,
        title=first["message"],
        change=first["change"],
        lines=(),
        notes=(f"`{_FILE}` has this; the log shows no failure", *notes[1:]),
    )


def _parse_row(row: Any) -> Mapping[str, str] | None:
    """None for what `harness.watch` does not write: the file may be anybody's."""
    is_row = isinstance(row, dict) and isinstance(row.get("message"), str)
    if not is_row or not is_engine_check(str(row.get("gate"))):
        return None
    fix = row.get("fix")
    change = fix.get("title") if isinstance(fix, dict) else ""
    message = " ".join(row["message"].split())[:_MAX_TEXT]
    return {"gate": row["gate"], "message": message, "change": str(change or "")[:_MAX_TEXT]}


def describe_writers(file: Path) -> tuple[str, ...]:
    """Sentences about the ranks among the processes that write the log; empty where none is on this machine."""
    deadline = time.monotonic() + _STACK_SECONDS
    texts = (_describe_rank(pid, deadline - time.monotonic()) for pid in sorted(find_writers(file)))
    notes = list(itertools.islice(filter(None, texts), _MAX_RANKS))
    with contextlib.suppress(OSError):
        notes += describe_ras_report(query_ras())
    return tuple(notes)


def _describe_rank(pid: int, seconds: float) -> str:
    """`rank 1 (pid 812) is stopped by a signal`; empty for a process that is no rank. `seconds` are for its stack."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    rank = next((part[5:].decode() for part in environment if part.startswith(b"RANK=")), "")
    if not rank.isdecimal():
        return ""
    place = next(_stack_of(pid, seconds), "") if seconds > 0 else ""
    what = _STATES.get(state, f"is in {place}" if place else "runs (`pip install py-spy` shows where)")
    return f"rank {rank} (pid {pid}) {what}"


def _stack_of(pid: int, seconds: float) -> Iterator[str]:
    """The innermost frames of the process's main thread, where py-spy is installed and may look."""
    program = shutil.which("py-spy")
    if program is None:
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [program, "dump", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603
        main = done.stdout.partition('"MainThread"')[2]
        for frame in _FRAME.finditer(main):
            yield f"{frame['function']} ({frame['file']}:{frame['line']})"
