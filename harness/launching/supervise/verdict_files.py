# SPDX-License-Identifier: Apache-2.0
"""The verdict of a run as files: where this launch writes its own, and those of the other hosts that it waits for."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from harness.diagnosis import Diagnosis
from harness.diagnosis.decision import Decision, decide_action
from harness.diagnosis.run_diagnosis import diagnose_failure
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import LaunchPlan
from harness.launching.supervise.run_verdict import is_lost_peer_error
from harness.launching.supervise.space_wait import is_disk_full_error
from harness.verdicts import VERDICT, Verdict, read_verdict, verdict_to_json, write_verdict

_RENDEZVOUS_CAUSES = ("LG066", "LG067")
"""A port that is in use, and a main process that is not there: a restart takes another port, unless the spec or
several hosts fix it, and waits.
"""
_DISK_SECONDS = 10.0
"""The limit for a disk that is full at the end of a launch to take the verdict."""


def save_verdict(plan: LaunchPlan, verdict: Verdict) -> OSError | None:
    """Write the verdict to the run directory; the error where the disk does not take it. Where each host starts its own
    ranks, hosts other than the first write to `status/node-N`, for the first one, which writes the run's.
    """
    folder = plan.run_dir if plan.is_leader else plan.run_dir / "status" / f"node-{plan.node_rank}"
    try:
        folder.mkdir(exist_ok=True)
        write_verdict(folder, verdict)
    except OSError as error:
        return error
    return None


def save_last_verdict(plan: LaunchPlan, verdict: Verdict, context: LaunchContext) -> None:
    """Write the verdict of the whole launch. Where the run directory does not take it within seconds, it goes to the
    folder for temporary files, and a note says where.
    """
    deadline = time.monotonic() + _DISK_SECONDS
    while (error := save_verdict(plan, verdict)) is not None and time.monotonic() < deadline:
        time.sleep(0.5)
    if error is None:
        return
    problem = f"verdict.json cannot be written to {plan.run_dir}: {(error.strerror or str(error)).lower()}"
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"harness-{plan.run_dir.name}-"))
        write_verdict(folder, verdict)
    except OSError as other:
        reason = (other.strerror or str(other)).lower()
        text = json.dumps(verdict_to_json(verdict))
        context.observer.on_note(f"{problem}; nor to the folder for temporary files: {reason}; it is {text}")
    else:
        context.observer.on_note(f"{problem}; it is {folder / VERDICT}")


def verdict_from_log(plan: LaunchPlan, verdict: Verdict) -> Verdict:
    """The verdict with the rank and the error that the log names, where the rank of the verdict only lost another one
    whose process wrote no status.
    """
    if not verdict.crashed or not is_lost_peer_error(verdict.reason):
        return verdict
    diagnosis = diagnose_failure(plan.run_dir, verdict)
    if diagnosis is None or diagnosis.rank in (None, verdict.rank) or is_lost_peer_error(diagnosis.message):
        return verdict
    return replace(verdict, rank=diagnosis.rank, host=diagnosis.host, reason=diagnosis.message, cause=diagnosis.cause)


def advise_restart(run_dir: Path, verdict: Verdict) -> Decision | None:
    """The decision by the cause of a failed attempt, whose verdict is saved; None where its cause is not known."""
    if is_disk_full_error(verdict.reason):  # the log may be on that disk, too
        return decide_action(Diagnosis("failed", "certain", "LG050", host=verdict.host))
    diagnosis = diagnose_failure(run_dir, verdict)
    decision = decide_action(diagnosis) if diagnosis is not None else None
    if decision is not None and diagnosis is not None and diagnosis.cause in _RENDEZVOUS_CAUSES:
        evidence = f"({diagnosis.cause}, {diagnosis.confidence})"
        reason = f"a restart takes another port where none is fixed, and its ranks wait {evidence}"
        return replace(decision, action="retry", reason=reason, changes={})
    return decision


def verdict_of_other_hosts(plan: LaunchPlan, verdict: Verdict, seconds: float) -> Verdict:
    """The verdict that the supervisor of another host writes within `seconds`, where each host starts its own ranks and
    a rank of this host lost a peer there; else the verdict that is given.
    """
    if plan.node_rank is None or not plan.is_leader or not verdict.crashed or not is_lost_peer_error(verdict.reason):
        return verdict
    folders = [plan.run_dir / "status" / f"node-{node}" for node in range(len(plan.hosts)) if node != plan.node_rank]
    deadline, causes = time.monotonic() + seconds, list[Verdict]()
    while not causes and time.monotonic() < deadline:
        time.sleep(0.1)
        others = [read_verdict(folder) for folder in folders]
        causes = [v for v in others if v is not None and v.state == "failed" and not is_lost_peer_error(v.reason)]
    return min(causes, key=lambda v: v.time, default=verdict)
