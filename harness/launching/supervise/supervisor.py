# SPDX-License-Identifier: Apache-2.0
"""The attempts of a run, one after the other, in one run directory.

`attempt_runner` runs one attempt, `restart_policy` decides whether there is another.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.checkpoints.latest import find_latest, saved_step, step_in_name
from harness.errors import ExitCode
from harness.launching.hosts.local_host import find_free_port
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import LaunchPlan
from harness.launching.setup.resume import find_resumable_checkpoint
from harness.launching.supervise.attempt_runner import run_attempt
from harness.launching.supervise.cleanup import remove_buffers_of_other_runs
from harness.launching.supervise.own_disks import find_stored_resume
from harness.launching.supervise.restart_files import (
    append_restart_event,
    archive_statuses,
    log_name,
    write_restarts,
)
from harness.launching.supervise.restart_policy import Attempt, decide_restart
from harness.launching.supervise.verdict_files import save_verdict, verdict_from_log, verdict_of_other_hosts
from harness.spec.sections.launch_spec import LaunchSpec
from harness.units import format_seconds
from harness.verdicts import Verdict, describe_verdict

_OTHER_HOST_SECONDS = 10.0
"""The limit for another host's supervisor to write the verdict on its ranks."""

ReplanWithoutHosts = Callable[[Collection[str]], LaunchPlan | str]
"""The plan without these hosts, written to the run directory; or the reason why there is none."""


@dataclass(slots=True)
class _Supervisor:
    launch: LaunchSpec
    context: LaunchContext
    heartbeat: Callable[[], None]
    replan_without_hosts: ReplanWithoutHosts | None = None
    lost_hosts: list[str] = field(default_factory=list)
    """Hosts that were cut off, in all attempts."""
    attempts: list[Attempt] = field(default_factory=list)

    def log(self, text: str) -> None:
        """A line for the observer of the launch."""
        self.context.observer.on_note(text)


def supervise_run(
    plan: LaunchPlan,
    launch: LaunchSpec,
    context: LaunchContext,
    heartbeat: Callable[[], None],
    replan_without_hosts: ReplanWithoutHosts | None = None,
) -> tuple[Verdict, Sequence[Attempt]]:
    """Run the ranks to their end, again where `launch.max_restarts` lets it; the verdict on the last attempt, and all
    attempts. `heartbeat` is called repeatedly; `replan_without_hosts` fits the run to fewer hosts.
    """
    supervisor = _Supervisor(launch, context, heartbeat, replan_without_hosts)
    remove_buffers_of_other_runs(plan.run_dir.parent)
    while True:
        start_time, start_step = time.time(), _step_of(plan.resume)  # the attempt may remove what it resumes from
        result = run_attempt(plan, supervisor.launch, context, heartbeat)
        if result.lost_host is not None:
            supervisor.lost_hosts.append(result.lost_host)
        verdict = verdict_of_other_hosts(plan, result.verdict, _OTHER_HOST_SECONDS)
        verdict = replace(verdict_from_log(plan, verdict), attempt=plan.attempt, time=time.time())
        context.observer.on_end(verdict)
        save_verdict(plan, verdict, context)
        supervisor.attempts.append(_to_attempt(plan, verdict, start_time, start_step))
        decision = _decide_next_attempt(plan, supervisor, verdict)
        if isinstance(decision, Verdict):
            if decision != verdict:
                save_verdict(plan, decision, context)
            return decision, supervisor.attempts
        plan = decision


def _to_attempt(plan: LaunchPlan, verdict: Verdict, start_time: float, start_step: int) -> Attempt:
    newest = find_latest(plan.run_dir / "checkpoints", verify="exists").checkpoint
    return Attempt(
        number=plan.attempt,
        began=start_time,
        ended=time.time(),
        resumed_from=str(plan.resume) if plan.resume else None,
        start_step=start_step,
        saved_step=(step_in_name(newest.name) or 0) if newest else 0,
        step=verdict.step,
        state=verdict.state,
        code=int(verdict.code),
        cause=verdict.reason,
        rank=verdict.rank,
        host=verdict.host,
        log=f"logs/{log_name(plan.attempt)}",
    )


def _step_of(checkpoint: Path | None) -> int:
    """The step to go on from; 0 without a checkpoint."""
    return (saved_step(checkpoint) or 0) if checkpoint is not None else 0


def _decide_next_attempt(plan: LaunchPlan, supervisor: _Supervisor, verdict: Verdict) -> LaunchPlan | Verdict:
    """The plan of the next attempt, or the verdict that ends the run."""
    launch, signals, attempts = supervisor.launch, supervisor.context.signals, supervisor.attempts
    if len(attempts) > 1:
        _write_restarts(plan.run_dir, supervisor)
        verdict = replace(verdict, notes=(*verdict.notes, _describe_history(attempts)))
    stop_file = plan.run_dir / "stop"
    if signals.received or (verdict.state == "failed" and stop_file.exists()):
        return verdict
    decision = decide_restart(attempts, verdict, launch.max_restarts, launch.restart_delay_seconds)
    if decision.delay is None:
        note = decision.reason if verdict.state == "failed" else ""
        return replace(verdict, notes=(*verdict.notes, note)) if note else verdict
    restarts_left = launch.max_restarts - len(attempts) + 1
    supervisor.log(_describe_restart(verdict, decision.delay, restarts_left))
    deadline = time.monotonic() + decision.delay
    while time.monotonic() < deadline:
        if signals.received or stop_file.exists():
            return _stopped_while_waiting_verdict(verdict, attempts[-1], signals.first)
        supervisor.heartbeat()
        time.sleep(0.1)
    return _plan_next_attempt(_drop_lost_hosts(plan, supervisor), supervisor)


def _describe_restart(verdict: Verdict, delay: float, restarts_left: int) -> str:
    return f"{describe_verdict(verdict)}; restarting in {format_seconds(delay)}, {restarts_left} left"


def _stopped_while_waiting_verdict(verdict: Verdict, attempt: Attempt, signum: int | None) -> Verdict:
    """The verdict on a run that a signal or the file `stop` ended between two attempts."""
    return Verdict(
        "stopped",
        128 + signum if signum else ExitCode.INTERRUPTED,
        f"between two attempts; before: {verdict.reason}",
        step=verdict.step,
        notes=verdict.notes,
        signal=signal.Signals(signum).name if signum else "",
        attempt=attempt.number,
        time=time.time(),
    )


def _drop_lost_hosts(plan: LaunchPlan, supervisor: _Supervisor) -> LaunchPlan:
    """The plan without the lost hosts, where the spec allows it; else the same plan, since they may return."""
    min_hosts = supervisor.launch.min_hosts
    hosts = {host.name for host in plan.hosts}
    lost = hosts & set(supervisor.lost_hosts)
    if not lost or min_hosts is None or supervisor.replan_without_hosts is None or len(hosts - lost) < min_hosts:
        return plan
    names = ", ".join(sorted(lost))
    replanned = supervisor.replan_without_hosts(supervisor.lost_hosts)
    if isinstance(replanned, str):
        supervisor.log(f"it cannot continue without {names}: {replanned}")
        return plan
    plan = replanned
    supervisor.log(f"continuing without {names}: {plan.world_size} ranks on {len(plan.hosts)} of the hosts")
    return plan


def _plan_next_attempt(plan: LaunchPlan, supervisor: _Supervisor) -> LaunchPlan:
    """Make the run directory ready and choose the checkpoint to resume from: this run's newest complete one, else the
    one that the run itself resumed from, else none.
    """
    resume = _find_resume(plan, supervisor)
    last = supervisor.attempts[-1]
    archive_statuses(plan.run_dir, last.number)
    with contextlib.suppress(OSError):
        append_restart_event(plan.run_dir, last, resume, _step_of(resume))
    _write_restarts(plan.run_dir, supervisor)
    next_number = last.number + 1
    supervisor.log(
        f"attempt {next_number} resumes from {resume}" if resume else f"attempt {next_number} starts from step 0"
    )
    is_port_fixed = supervisor.launch.master_port is not None or not plan.local
    return plan.for_attempt(next_number, resume, plan.port if is_port_fixed else find_free_port())


def _find_resume(plan: LaunchPlan, supervisor: _Supervisor) -> Path | None:
    """Where hosts share no disk, the shards of a lost host are in the store alone."""
    stored = None
    if supervisor.lost_hosts and not plan.shared_disk:
        stored = find_stored_resume(plan.run_dir, supervisor.launch.env, supervisor.log)
    return stored or find_resumable_checkpoint(plan.run_dir, supervisor.log) or _first_resume(supervisor.attempts)


def _first_resume(attempts: Sequence[Attempt]) -> Path | None:
    resumed_from = attempts[0].resumed_from
    return Path(resumed_from) if resumed_from else None


def _write_restarts(run_dir: Path, supervisor: _Supervisor) -> None:
    try:
        write_restarts(run_dir, supervisor.attempts)
    except OSError as error:
        supervisor.log(f"restarts.json cannot be written: {error.strerror or error}")


def _describe_history(attempts: Sequence[Attempt]) -> str:
    causes = "; ".join(f"attempt {a.number} ended at step {a.step}: {a.cause}" for a in attempts[:-1])
    count = len(attempts) - 1
    return f"restarted {count} time{'s' if count > 1 else ''}: {causes}"
