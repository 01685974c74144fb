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
from harness.diagnosis.decision import Decision
from harness.errors import ExitCode
from harness.launching.hosts.local_host import find_free_port
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import LaunchPlan
from harness.launching.setup.resume import find_resumable_checkpoint
from harness.launching.supervise.attempt_runner import run_attempt
from harness.launching.supervise.cleanup import remove_buffers_of_other_runs
from harness.launching.supervise.own_disks import find_stored_resume
from harness.launching.supervise.restart_files import append_restart_event, archive_statuses, log_name, write_restarts
from harness.launching.supervise.restart_policy import Attempt, decide_restart
from harness.launching.supervise.returning_hosts import MAX_LOSSES, RETURN_TEXT, LostHosts
from harness.launching.supervise.space_wait import MAX_SPACE_SECONDS, find_full_disk, wait_for_space
from harness.launching.supervise.verdict_files import (
    advise_restart,
    save_verdict,
    verdict_from_log,
    verdict_of_other_hosts,
)
from harness.run_records.run_files import text_of
from harness.spec.sections.launch_spec import LaunchSpec
from harness.units import format_seconds
from harness.verdicts import Verdict, describe_verdict

_OTHER_HOST_SECONDS = 10.0
"""The limit for another host's supervisor to write the verdict on its ranks."""

_LOST_HOST_SECONDS = 180.0
"""The limit for lost hosts to answer again, before a restart that needs them."""

ReplanWithoutHosts = Callable[[Collection[str]], LaunchPlan | str]
"""The plan without these hosts, written to the run directory; or the reason why there is no such plan."""


@dataclass(slots=True)
class _Supervisor:
    launch: LaunchSpec
    context: LaunchContext
    heartbeat: Callable[[], None]
    all_hosts: frozenset[str]
    """Those of the first attempt."""
    lost_hosts: LostHosts
    replan_without_hosts: ReplanWithoutHosts | None = None
    exports: bool = False
    attempts: list[Attempt] = field(default_factory=list)

    def save_verdict(self, plan: LaunchPlan, verdict: Verdict) -> None:
        """Until the export has ended, a run that completed has a verdict which says so: nobody may be left to write
        another.
        """
        if self.exports and verdict.state == "completed":
            reason = "training is complete and saved; its export had not ended" + (
                verdict.reason and f"; {verdict.reason}"
            )
            verdict = replace(verdict, state="failed", code=ExitCode.FINDINGS, reason=reason)
        save_verdict(plan, verdict)

    def log(self, text: str) -> None:
        """A line for the observer of the launch."""
        self.context.observer.on_note(text)


def supervise_run(
    plan: LaunchPlan,
    launch: LaunchSpec,
    context: LaunchContext,
    heartbeat: Callable[[], None],
    replan_without_hosts: ReplanWithoutHosts | None = None,
    *,
    exports: bool = False,
) -> tuple[Verdict, Sequence[Attempt]]:
    """Run the ranks to their end, again where `launch.max_restarts` lets it; the verdict on the last attempt, and all
    attempts. `heartbeat` is called repeatedly; `replan_without_hosts` fits the run to fewer hosts; with `exports` the
    caller exports a run that completed.
    """
    all_hosts = frozenset(host.name for host in plan.hosts)
    lost_hosts = LostHosts(plan.run_dir)
    supervisor = _Supervisor(launch, context, heartbeat, all_hosts, lost_hosts, replan_without_hosts, exports)
    remove_buffers_of_other_runs(plan.run_dir.parent)
    while True:
        start_time, start_step = time.time(), _step_of(plan.resume)  # the attempt may remove what it resumes from
        is_short = len(plan.hosts) < len(all_hosts)
        result = run_attempt(plan, supervisor.launch, context, heartbeat, lost_hosts if is_short else None)
        lost_hosts.add(result.lost_hosts, [host.name for host in plan.hosts])
        verdict = verdict_of_other_hosts(plan, result.verdict, _OTHER_HOST_SECONDS)
        if result.stopped_for:
            verdict = _verdict_for_return(plan, verdict, result.stopped_for)
        verdict = replace(verdict_from_log(plan, verdict), attempt=plan.attempt, time=time.time())
        context.observer.on_end(verdict)
        supervisor.save_verdict(plan, verdict)
        supervisor.attempts.append(_to_attempt(plan, verdict, start_time, start_step))
        decision = _decide_next_attempt(plan, supervisor, verdict, stopped_for=result.stopped_for)
        if isinstance(decision, Verdict):
            if decision != verdict:
                supervisor.save_verdict(plan, decision)
            return decision, supervisor.attempts
        if verdict.state == "failed":
            context.notify("failure", f"{describe_verdict(verdict)}; attempt {decision.attempt} begins")
        plan = decision


def _verdict_for_return(plan: LaunchPlan, verdict: Verdict, hosts: Sequence[str]) -> Verdict:
    """The verdict on ranks that stopped for hosts that answer again. Removes the file `stop` that asked them to, unless
    somebody else wrote it.
    """
    stop_file = plan.run_dir / "stop"
    if not text_of(stop_file).startswith(RETURN_TEXT):
        return verdict
    with contextlib.suppress(OSError):
        stop_file.unlink(missing_ok=True)
    reason = f"every rank finished its step, to continue with {', '.join(hosts)}"
    return replace(verdict, reason=reason) if verdict.state == "stopped" else verdict


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


def _decide_next_attempt(
    plan: LaunchPlan, supervisor: _Supervisor, verdict: Verdict, *, stopped_for: Sequence[str]
) -> LaunchPlan | Verdict:
    """The plan of the next attempt, or the verdict that ends the run."""
    launch, signals, attempts = supervisor.launch, supervisor.context.signals, supervisor.attempts
    if len(attempts) > 1:
        _write_restarts(plan.run_dir, supervisor)
        verdict = replace(verdict, notes=(*verdict.notes, _describe_history(attempts)))
    stop_file = plan.run_dir / "stop"
    if signals.received or (verdict.state == "failed" and stop_file.exists()):
        return verdict
    if stopped_for and verdict.state == "stopped" and not stop_file.exists():
        return _plan_next_attempt(_fit_hosts(plan, supervisor), supervisor, verdict)
    failures = [*(attempt for attempt in attempts[:-1] if attempt.state == "failed"), attempts[-1]]
    advice = advise_restart(plan.run_dir, verdict) if launch.max_restarts else None
    decision = decide_restart(failures, verdict, launch.max_restarts, launch.restart_delay_seconds, advice)
    note = decision.reason if decision.delay is None else _leave_out_sick_hosts(plan, supervisor, verdict, advice)
    if decision.delay is not None and not note and advice is not None and advice.needs_space:
        note = _wait_for_full_disk(plan, supervisor, verdict)
    if decision.delay is None or note:
        return _with_note(verdict, note)
    restarts_left = launch.max_restarts - len(failures) + 1
    supervisor.log(_describe_restart(verdict, decision.delay, restarts_left, advice))
    deadline = time.monotonic() + decision.delay
    while time.monotonic() < deadline:
        if signals.received or stop_file.exists():
            return _stopped_while_waiting_verdict(verdict, attempts[-1], signals.first)
        supervisor.heartbeat()
        time.sleep(0.1)
    plan = _fit_hosts(plan, supervisor)
    sick = sorted({host.name for host in plan.hosts} & supervisor.lost_hosts.sick)
    if not sick and not _wait_for_hosts(plan, supervisor, lambda: bool(signals.received) or stop_file.exists()):
        return _stopped_while_waiting_verdict(verdict, attempts[-1], signals.first)
    note = f"not restarted: the hardware of {', '.join(sick)} failed, and the run has no plan without it"
    return _with_note(verdict, note) if sick else _plan_next_attempt(plan, supervisor, verdict)


def _wait_for_hosts(plan: LaunchPlan, supervisor: _Supervisor, is_stopped: Callable[[], bool]) -> bool:
    """Wait until the lost hosts of the plan answer again, for some time: a link that is down for a minute would cost a
    restart every few seconds. False if the run is to stop.
    """
    lost = supervisor.lost_hosts
    hosts = {host.name for host in plan.hosts} & lost.names - lost.left_out
    deadline = time.monotonic() + _LOST_HOST_SECONDS
    if hosts:
        supervisor.log(f"waiting for {', '.join(sorted(hosts))} to answer, for {format_seconds(_LOST_HOST_SECONDS)}")
    while not hosts <= lost.answering and time.monotonic() < deadline:
        if is_stopped():
            lost.close()
            return False
        lost.poll(num_saves=0)
        supervisor.heartbeat()
        time.sleep(0.1)
    lost.close()
    return True


def _with_note(verdict: Verdict, note: str) -> Verdict:
    """The verdict with the reason why a run that failed does not start again."""
    return replace(verdict, notes=(*verdict.notes, note)) if note and verdict.state == "failed" else verdict


def _wait_for_full_disk(plan: LaunchPlan, supervisor: _Supervisor, verdict: Verdict) -> str:
    """Wait until the disk that was full has space; the reason against a restart if nobody frees any, else empty."""
    signals, stop_file = supervisor.context.signals, plan.run_dir / "stop"
    disk, needed = find_full_disk(plan.run_dir, verdict.reason)

    def is_stopped() -> bool:
        return bool(signals.received) or stop_file.exists()

    if wait_for_space(disk, needed, supervisor.log, supervisor.heartbeat, is_stopped):
        return ""
    return f"not restarted: nobody freed space in {disk} within {format_seconds(MAX_SPACE_SECONDS)}"


def _leave_out_sick_hosts(plan: LaunchPlan, supervisor: _Supervisor, verdict: Verdict, advice: Decision | None) -> str:
    """Leave out a host whose hardware failed, for good, and one that was cut off, until it answers; the reason why
    there is no restart where the run needs it, else empty.
    """
    if advice is None or not advice.is_certain or advice.action != "retry elsewhere":
        return ""
    sick = {host.name for host in plan.hosts if host.name in advice.hosts}
    if not sick and (not advice.hosts or verdict.host in advice.hosts):  # under another name than the hostfile's
        sick = {host.name for host in plan.hosts if verdict.rank in host.ranks}
    sick -= supervisor.lost_hosts.names
    launch, left = supervisor.launch, supervisor.all_hosts - supervisor.lost_hosts.names - sick
    if not sick:
        return ""
    names = ", ".join(sorted(sick))
    if launch.min_hosts is None or supervisor.replan_without_hosts is None or len(left) < launch.min_hosts:
        needs = "`launch.min_hosts` is not set" if launch.min_hosts is None else f"{launch.min_hosts} hosts are needed"
        return f"not restarted: retry elsewhere: {advice.reason}; {needs}, so the run cannot do without {names}"
    if advice.hosts_may_return:
        supervisor.lost_hosts.add(sick, ())
    else:
        supervisor.lost_hosts.leave_out(sick)
    return ""


def _describe_restart(verdict: Verdict, delay: float, restarts_left: int, advice: Decision | None) -> str:
    why = f"{advice.action}: {advice.reason}; " if advice is not None else ""
    return f"{describe_verdict(verdict)}; {why}restarting in {format_seconds(delay)}, {restarts_left} left"


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


def _fit_hosts(plan: LaunchPlan, supervisor: _Supervisor) -> LaunchPlan:
    """The plan without the lost hosts and with those that answer again, where the spec allows it; else the same plan,
    since lost hosts may return.
    """
    min_hosts, lost, all_hosts = supervisor.launch.min_hosts, supervisor.lost_hosts, supervisor.all_hosts
    absent = all_hosts - {host.name for host in plan.hosts}
    returned = lost.take_back()
    if min_hosts is None or supervisor.replan_without_hosts is None or lost.names == absent:
        return plan
    newly_lost = sorted(lost.names - absent)
    if len(all_hosts - lost.names) < min_hosts:
        lost.names |= set(returned)
        return plan
    changes = [f"without {', '.join(newly_lost)}"] if newly_lost else []
    changes += [f"with {', '.join(returned)} again"] if returned else []
    change = " and ".join(changes)
    replanned = supervisor.replan_without_hosts(sorted(lost.names))
    if isinstance(replanned, str):
        lost.refuse(returned)
        supervisor.log(f"it cannot continue {change}: {replanned}")
        return plan
    supervisor.log(f"continuing {change}: {replanned.world_size} ranks on {len(replanned.hosts)} of the hosts")
    for name in sorted(lost.left_out.intersection(newly_lost)):
        why = "has hardware that failed" if name in lost.sick else f"was lost {MAX_LOSSES} times"
        supervisor.log(f"{name} {why}: it is left out from now on")
    return replanned


def _plan_next_attempt(plan: LaunchPlan, supervisor: _Supervisor, verdict: Verdict) -> LaunchPlan | Verdict:
    """Make the run directory ready and choose the checkpoint to resume from: this run's newest complete one, else the
    one that the run itself resumed from, else none. The verdict on the last attempt where the disk does not let it.
    """
    resume = _find_resume(plan, supervisor)
    last = supervisor.attempts[-1]
    try:
        archive_statuses(plan.run_dir, last.number)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        note = f"not started again: the run directory cannot be written: {reason}"
        return replace(verdict, notes=(*verdict.notes, note))
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
    if supervisor.lost_hosts.names and not plan.shared_disk:
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
