# SPDX-License-Identifier: Apache-2.0
"""The cause of a run's end: from its log, its supervisor and its ranks."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from harness.diagnosis import Diagnosis, diagnose
from harness.diagnosis.catalogue import causes_by_id
from harness.diagnosis.evidence.engine_check_file import add_engine_differences
from harness.diagnosis.live_processes import describe_writers
from harness.diagnosis.reader.followed_log import FollowedLog, find_writers
from harness.diagnosis.reader.log_files import find_logs
from harness.locks import RUN_LOCK, current_holder
from harness.run_records.rank_statuses import read_statuses
from harness.units import format_seconds
from harness.verdicts import Verdict, read_verdict


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
