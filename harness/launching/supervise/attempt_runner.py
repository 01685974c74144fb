# SPDX-License-Identifier: Apache-2.0
"""One attempt: starts the ranks, waits for their end or kills them, and decides the verdict."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.checkpoints.latest import find_latest
from harness.errors import ExitCode
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise.cleanup import remove_buffers, remove_partial_files
from harness.launching.supervise.monitor import TICK_SECONDS, RankMonitor, name_hosts
from harness.launching.supervise.node_agents import HOST_SILENCE_SECONDS
from harness.launching.supervise.own_disks import copy_run_dir
from harness.launching.supervise.restart_files import log_name
from harness.launching.supervise.returning_hosts import RETURN_TEXT, LostHosts
from harness.launching.supervise.run_verdict import decide_verdict
from harness.launching.supervise.termination import RankTermination
from harness.run_records.run_files import text_of
from harness.spec.sections.launch_spec import LaunchSpec
from harness.units import format_seconds
from harness.verdicts import Verdict

_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
_HANG_CAUSE, _LOST_HOST_CAUSE = "LG076", "LG077"
"""Pages of `harness explain` for a run that hung, and for a host that was cut off."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The verdict on one attempt, and the hosts that were cut off in it. `stopped_for`: the hosts that answer again,
    for which the ranks were stopped.
    """

    verdict: Verdict
    lost_hosts: tuple[str, ...] = ()
    stopped_for: tuple[str, ...] = ()


def run_attempt(
    plan: LaunchPlan,
    launch: LaunchSpec,
    context: LaunchContext,
    heartbeat: Callable[[], None],
    lost_hosts: LostHosts | None = None,
) -> AttemptResult:
    """Run the ranks of one attempt to their end, or until one of `lost_hosts` answers again. `heartbeat` is called
    repeatedly. Raises UserError (EN058).
    """
    remove_buffers(plan)
    copy_run_dir(plan, context.scripts)
    log = log_name(plan.attempt) if plan.is_leader else f"host-{plan.hosts[plan.node_rank or 0].name}.log"
    monitor = RankMonitor(plan, launch, context, log, heartbeat)
    termination = RankTermination(monitor, launch)
    monitor.start()
    stopped_for: tuple[str, ...] = ()
    try:
        stopped_for = _wait_for_end(monitor, termination, lost_hosts)
    finally:
        termination.terminate_ranks()
        remove_buffers(plan)
        if plan.local and not termination.unkilled_processes:  # with other hosts, a rank there may still be writing
            remove_partial_files(plan.run_dir)
    return replace(_result_of(plan, context, monitor, termination), stopped_for=stopped_for)


def _wait_for_end(monitor: RankMonitor, termination: RankTermination, lost_hosts: LostHosts | None) -> tuple[str, ...]:
    """Wait until the launcher has ended and none of its processes is left on this machine. Returns the hosts for which
    the ranks were stopped.
    """
    stopped_for: tuple[str, ...] = ()
    while monitor.child.poll() is None:
        signum = monitor.signals.first or monitor.find_launcher_signal()
        if signum:
            termination.stop_ranks(signum)
            break
        monitor.poll()
        if monitor.is_hung_at_exit():
            monitor.observer.on_note("all ranks finished but the launcher did not exit; killing it")
            break
        if monitor.is_broken():
            break
        if lost_hosts is not None and lost_hosts.poll(monitor.num_saves):
            stopped_for = tuple(sorted(lost_hosts.answering))
            monitor.observer.on_note(f"{', '.join(stopped_for)} can be reached again; stopping after this step")
            termination.stop_to_restart(f"{RETURN_TEXT}: {', '.join(stopped_for)}")
            break
        time.sleep(TICK_SECONDS)
    monitor.poll(force=True)
    monitor.wait_for_other_hosts()
    if -(monitor.child.poll() or 0) in _STOP_SIGNALS and monitor.is_training() and not monitor.signals.received:
        termination.stop_ranks(-monitor.child.returncode)  # who asks the launcher to end asks for the run to end
    termination.terminate_ranks()
    return stopped_for


def _result_of(
    plan: LaunchPlan, context: LaunchContext, monitor: RankMonitor, termination: RankTermination
) -> AttemptResult:
    statuses = monitor.statuses
    verdict = decide_verdict(
        statuses,
        plan.world_size,
        termination.exit_code,
        monitor.rank_exits,
        context.signals.first,
        ranks_killed=termination.ranks_killed,
        stop_text=text_of(plan.run_dir / "stop"),
        starts_remote_ranks=plan.starts_remote_ranks,
        launcher_ended_here=termination.launcher_ended_here,
    )
    verdict = replace(verdict, step=max(verdict.step, monitor.last_step))
    lost_hosts: tuple[str, ...] = ()
    if monitor.lost_hosts and verdict.state != "completed":
        lost_hosts = tuple(host.name for host in monitor.lost_hosts)
        verdict = _lost_hosts_verdict(monitor.lost_hosts, verdict)
    elif monitor.hang is not None and verdict.state != "completed":
        rank = monitor.hang.rank
        host = statuses[rank].host if rank in statuses else ""
        hung = Verdict("failed", ExitCode.HUNG, monitor.hang.reason, rank, host, verdict.step)
        verdict = replace(hung, cause=_HANG_CAUSE)
    is_uploading = any(s.phase == "upload" and s.outcome for s in statuses.values())
    if termination.exceeded_grace is not None and termination.ranks_killed and not is_uploading:
        verdict = replace(verdict, notes=(*verdict.notes, _exceeded_grace_note(plan, termination.exceeded_grace)))
    if termination.unkilled_processes:
        pids = ", ".join(str(p.pid) for p in termination.unkilled_processes)
        verdict = replace(verdict, notes=(*verdict.notes, f"these processes could not be killed: {pids}"))
    if termination.unkilled_on_hosts:
        note = f"these could not be killed: {'; '.join(termination.unkilled_on_hosts)}"
        verdict = replace(verdict, notes=(*verdict.notes, note))
    return AttemptResult(verdict, lost_hosts)


def _exceeded_grace_note(plan: LaunchPlan, seconds: float) -> str:
    """The time that the ranks had, the key that sets it, and what is left of their training."""
    newest = find_latest(plan.run_dir / "checkpoints", verify="exists").checkpoint
    saved = "nothing was saved" if newest is None else f"only {newest.name} is saved"
    return (
        f"no step and save had ended {format_seconds(seconds)} after the signal, so {saved}: raise "
        "`launch.stop_grace_seconds`"
    )


def _lost_hosts_verdict(hosts: Sequence[HostPlan], verdict: Verdict) -> Verdict:
    """The verdict for lost hosts; errors about a lost peer follow from it."""
    verb = "was" if len(hosts) == 1 else "were"
    silence = f"no heartbeat for {HOST_SILENCE_SECONDS:.0f} s"
    reason = f"{name_hosts(hosts)} {verb} cut off or switched off: {silence}"
    rank, name = hosts[0].ranks[0], hosts[0].name
    return Verdict("failed", ExitCode.FINDINGS, reason, rank, name, verdict.step, cause=_LOST_HOST_CAUSE)
