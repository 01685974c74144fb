"""The ranks from the first start to the last: one attempt after the other, in one run directory.

One attempt is `watch`'s, whether there is another is decided in `attempts`.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import ExitCode
from harness.launching.hosts.local_host import find_free_port
from harness.launching.process import shm
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.setup.resume import find_newest_checkpoint
from harness.launching.setup.run_dir import checkpoint_step, read_ports, remove_unfinished_saves
from harness.launching.supervise.monitor import RankMonitor
from harness.launching.supervise.node_agents import HOST_SILENCE_SECONDS
from harness.launching.supervise.restart_policy import (
    Attempt,
    append_restart_event,
    archive_statuses,
    decide_restart,
    log_name,
    write_restarts,
)
from harness.launching.supervise.run_verdict import decide_verdict, is_lost_peer_error, read_statuses
from harness.launching.supervise.stack_dumps import remove_empty_dumps
from harness.plan.resolved_run import ResolvedRun
from harness.units import format_seconds
from harness.verdicts import Verdict, read_verdict, write_verdict

_NEW_BUFFER_SECONDS = 60.0
"""A shared-memory buffer of another run in the same folder is left alone while so new: that run may be just starting
and has not mapped it yet."""

_OTHER_HOST_SECONDS = 10.0
"""How long another host's supervisor may take to say how a rank of its own ended."""
_HANG_CAUSE, _LOST_HOST_CAUSE = "LG076", "LG077"
"""What `harness explain` says of a run that hung, and of a host that was cut off."""

ReplanWithoutHosts = Callable[[Collection[str]], "tuple[LaunchPlan, ResolvedRun] | str"]
"""The plan and the run without these hosts, written to the run directory; or why there can be none."""


@dataclass(slots=True)
class _Supervisor:
    run: ResolvedRun
    context: LaunchContext
    heartbeat: Callable[[], None]
    replan_without_hosts: ReplanWithoutHosts | None = None
    lost_hosts: list[str] = field(default_factory=list)
    """Hosts that were cut off, in all attempts."""
    attempts: list[Attempt] = field(default_factory=list)


def supervise_run(
    plan: LaunchPlan,
    run: ResolvedRun,
    services: LaunchContext,
    heartbeat: Callable[[], None],
    replan_without_hosts: ReplanWithoutHosts | None = None,
) -> tuple[Verdict, Sequence[Attempt]]:
    """Run the ranks to their end, again where `launch.max_restarts` lets it; the verdict on the last attempt, and all
    attempts. `alive` is called again and again meanwhile; `shrink` makes the run fit the hosts that are left.
    """
    training = _Supervisor(run, services, heartbeat, replan_without_hosts)
    shm.remove_unused_buffers(read_ports(plan.run_dir.parent), older_than=_NEW_BUFFER_SECONDS)
    while True:
        began = time.time()
        verdict = verdict_of_other_hosts(plan, _run_attempt(plan, training), _OTHER_HOST_SECONDS)
        verdict = replace(verdict, attempt=plan.attempt, time=time.time())
        services.observer.on_end(verdict)
        save_verdict(plan, verdict, services)
        training.attempts.append(_to_attempt(plan, verdict, began))
        again = _decide_next_attempt(plan, training, verdict)
        if isinstance(again, Verdict):
            if again != verdict:
                save_verdict(plan, again, services)
            return again, training.attempts
        plan = again


def save_verdict(plan: LaunchPlan, verdict: Verdict, services: LaunchContext) -> None:
    """Write the verdict to the run directory; where each host starts its own ranks, those of other hosts than the first
    to `status/node-N`, for the first one, which writes the run's.
    """
    folder = plan.run_dir if plan.is_leader else plan.run_dir / "status" / f"node-{plan.node_rank}"
    try:
        folder.mkdir(exist_ok=True)
        write_verdict(folder, verdict)
    except OSError as error:
        services.observer.on_note(f"verdict.json cannot be written: {error.strerror or error}")


def verdict_of_other_hosts(plan: LaunchPlan, verdict: Verdict, seconds: float) -> Verdict:
    """Where each host starts its own ranks, a rank here that lost a peer does not tell how that one ended. The other
    host's supervisor saw it and writes it within `seconds`; else the verdict stays.
    """
    if plan.node_rank is None or not plan.is_leader or not verdict.crashed or not is_lost_peer_error(verdict.reason):
        return verdict
    folders = [plan.run_dir / "status" / f"node-{node}" for node in range(len(plan.hosts)) if node != plan.node_rank]
    end, seen = time.monotonic() + seconds, list[Verdict]()
    while not seen and time.monotonic() < end:
        time.sleep(0.1)
        found = [read_verdict(folder) for folder in folders]
        seen = [v for v in found if v is not None and v.state == "failed" and not is_lost_peer_error(v.reason)]
    return min(seen, key=lambda v: v.time, default=verdict)


def _run_attempt(plan: LaunchPlan, training: _Supervisor) -> Verdict:
    services = training.context
    shm.remove_unused_buffers({plan.port})
    log = log_name(plan.attempt) if plan.is_leader else f"host-{plan.hosts[plan.node_rank or 0].name}.log"
    watch = RankMonitor(plan, training.run, services, log, training.heartbeat)
    watch.start()
    try:
        watch.wait()
    finally:
        watch.terminate_ranks()
        shm.remove_unused_buffers({plan.port})
        if plan.local and not watch.unkilled_processes:  # with other hosts, a rank there may still be writing
            remove_unfinished_saves(plan.run_dir)
            remove_empty_dumps(plan.run_dir)
    statuses, asked = read_statuses(plan.run_dir), services.signals.first
    told = _read_text(plan.run_dir / "stop")
    verdict = decide_verdict(
        statuses,
        plan.world_size,
        watch.exit_code,
        watch.rank_exits,
        asked,
        ranks_killed=watch.ranks_killed,
        stop_text=told,
        starts_remote_ranks=plan.starts_remote_ranks,
    )
    if watch.lost_host is not None and verdict.state != "completed":
        training.lost_hosts.append(watch.lost_host.name)
        verdict = _lost_host_verdict(watch.lost_host, verdict)
    elif watch.hang is not None and verdict.state != "completed":
        host = statuses[watch.hang.rank].host if watch.hang.rank in statuses else ""
        hung = Verdict("failed", ExitCode.HUNG, watch.hang.reason, watch.hang.rank, host, verdict.step)
        verdict = replace(hung, cause=_HANG_CAUSE)
    if watch.unkilled_processes:
        pids = ", ".join(str(p.pid) for p in watch.unkilled_processes)
        verdict = replace(verdict, notes=(*verdict.notes, f"these processes could not be killed: {pids}"))
    if watch.unkilled_on_hosts:
        told = f"these could not be killed: {'; '.join(watch.unkilled_on_hosts)}"
        verdict = replace(verdict, notes=(*verdict.notes, told))
    return verdict


def _lost_host_verdict(host: HostPlan, verdict: Verdict) -> Verdict:
    """Ranks that say that they lost a peer are not who failed."""
    reason = f"host {host.name} was cut off or switched off: nothing was heard of it for {HOST_SILENCE_SECONDS:.0f} s"
    return Verdict("failed", ExitCode.FINDINGS, reason, host.ranks[0], host.name, verdict.step, cause=_LOST_HOST_CAUSE)


def _to_attempt(plan: LaunchPlan, verdict: Verdict, began: float) -> Attempt:
    start = checkpoint_step(plan.resume) if plan.resume else 0
    saved = [checkpoint_step(path.parent) or 0 for path in (plan.run_dir / "checkpoints").glob("step-*/manifest.json")]
    return Attempt(
        number=plan.attempt,
        began=began,
        ended=time.time(),
        resumed_from=str(plan.resume) if plan.resume else None,
        start_step=start or 0,
        saved_step=max(saved, default=0),
        step=verdict.step,
        state=verdict.state,
        code=int(verdict.code),
        cause=verdict.reason,
        rank=verdict.rank,
        host=verdict.host,
        log=f"logs/{log_name(plan.attempt)}",
    )


def _decide_next_attempt(plan: LaunchPlan, training: _Supervisor, verdict: Verdict) -> LaunchPlan | Verdict:
    """The plan of the next attempt, or the verdict that ends the run."""
    asked, signals, tell = training.run.spec.launch, training.context.signals, training.context.observer.on_note
    attempts = training.attempts
    if len(attempts) > 1:
        _write_restarts(plan.run_dir, attempts, training.context)
        verdict = replace(verdict, notes=(*verdict.notes, _describe_history(attempts)))
    stop = plan.run_dir / "stop"
    if signals.received or (verdict.state == "failed" and stop.exists()):
        return verdict
    decision = decide_restart(attempts, verdict, asked.max_restarts, asked.restart_delay_seconds)
    if decision.delay is None:
        told = decision.reason if verdict.state == "failed" else ""
        return replace(verdict, notes=(*verdict.notes, told)) if told else verdict
    host = f" ({verdict.host})" if verdict.host else ""
    who = f" on rank {verdict.rank}{host}" if verdict.rank is not None else ""
    left = asked.max_restarts - len(attempts) + 1
    wait = format_seconds(decision.delay)
    tell(f"failed{who} at step {verdict.step}: {verdict.reason}; starting again in {wait}, {left} left")
    end = time.monotonic() + decision.delay
    while time.monotonic() < end:
        if signals.received or stop.exists():
            code = 128 + signals.received[0] if signals.received else ExitCode.INTERRUPTED
            reason = f"between two attempts; before: {verdict.reason}"
            name = signal.Signals(signals.received[0]).name if signals.received else ""
            last, notes = training.attempts[-1], verdict.notes
            stopped = Verdict("stopped", code, reason, step=verdict.step, notes=notes, signal=name)
            return replace(stopped, attempt=last.number, time=time.time())
        training.heartbeat()
        time.sleep(0.1)
    return _plan_next_attempt(_drop_lost_hosts(plan, training), training)


def _drop_lost_hosts(plan: LaunchPlan, training: _Supervisor) -> LaunchPlan:
    """The plan without the hosts that were lost, where the spec lets it; else the same: they may return."""
    least, tell = training.run.spec.launch.min_hosts, training.context.observer.on_note
    hosts = {host.name for host in plan.hosts}
    lost = hosts & set(training.lost_hosts)
    if not lost or least is None or training.replan_without_hosts is None or len(hosts - lost) < least:
        return plan
    made = training.replan_without_hosts(training.lost_hosts)
    if isinstance(made, str):
        tell(f"it cannot go on without {', '.join(sorted(lost))}: {made}")
        return plan
    plan, training.run = made
    tell(f"going on without {', '.join(sorted(lost))}: {plan.world_size} ranks on {len(plan.hosts)} of the hosts")
    return plan


def _plan_next_attempt(plan: LaunchPlan, training: _Supervisor) -> LaunchPlan:
    """Make the run directory ready and choose where to go on from: this run's newest complete checkpoint, else the one
    that the run itself went on from, else the beginning.
    """
    tell = training.context.observer.on_note
    resume = find_newest_checkpoint(plan.run_dir, tell) or _first_resume(training.attempts)
    last = training.attempts[-1]
    archive_statuses(plan.run_dir, last.number)
    with contextlib.suppress(OSError):
        append_restart_event(plan.run_dir, last, resume, (checkpoint_step(resume) or 0) if resume else 0)
    _write_restarts(plan.run_dir, training.attempts, training.context)
    tell(f"attempt {last.number + 1} goes on from {resume}" if resume else f"attempt {last.number + 1} starts anew")
    fixed = training.run.spec.launch.master_port is not None or not plan.local
    return plan.for_attempt(last.number + 1, resume, plan.port if fixed else find_free_port())


def _first_resume(attempts: Sequence[Attempt]) -> Path | None:
    first = attempts[0].resumed_from
    return Path(first) if first else None


def _write_restarts(run_dir: Path, attempts: Sequence[Attempt], services: LaunchContext) -> None:
    try:
        write_restarts(run_dir, attempts)
    except OSError as error:
        services.observer.on_note(f"restarts.json cannot be written: {error.strerror or error}")


def _describe_history(attempts: Sequence[Attempt]) -> str:
    causes = "; ".join(f"attempt {a.number} ended at step {a.step}: {a.cause}" for a in attempts[:-1])
    count = len(attempts) - 1
    return f"started again {count} time{'s' if count > 1 else ''}: {causes}"


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
