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

from harness.errors import Exit
from harness.launching import shm
from harness.launching.attempts import Attempt, decide, log_name, note_restart, record, reset
from harness.launching.guards import SILENCE_SECONDS
from harness.launching.here import free_port
from harness.launching.onlooker import Services
from harness.launching.plan import HostPlan, LaunchPlan
from harness.launching.resuming import newest_in
from harness.launching.rundir import ports_of, remove_unfinished, step_of
from harness.launching.stacks import remove_empty
from harness.launching.verdict import judge, lost_peer, read_statuses
from harness.launching.watch import Watch
from harness.plan.run import Run
from harness.units import format_seconds
from harness.verdicts import Verdict, read_verdict, write_verdict

_BUFFER_SECONDS = 60.0
"""A shared-memory buffer of another run in the same folder is left alone while so new: that run may be just starting
and has not mapped it yet."""

_OTHERS_SECONDS = 10.0
"""How long another host's supervisor may take to say how a rank of its own ended."""
_HUNG, _CUT_OFF = "LG076", "LG077"
"""What `harness explain` says of a run that hung, and of a host that was cut off."""

Shrink = Callable[[Collection[str]], "tuple[LaunchPlan, Run] | str"]
"""The plan and the run without these hosts, written to the run directory; or why there can be none."""


@dataclass(slots=True)
class _Training:
    run: Run
    services: Services
    alive: Callable[[], None]
    shrink: Shrink | None = None
    lost: list[str] = field(default_factory=list)
    """Hosts that were cut off, in all attempts."""
    attempts: list[Attempt] = field(default_factory=list)


def train(
    plan: LaunchPlan, run: Run, services: Services, alive: Callable[[], None], shrink: Shrink | None = None
) -> tuple[Verdict, Sequence[Attempt]]:
    """Run the ranks to their end, again where `launch.max_restarts` lets it; the verdict on the last attempt, and all
    attempts. `alive` is called again and again meanwhile; `shrink` makes the run fit the hosts that are left.
    """
    training = _Training(run, services, alive, shrink)
    shm.remove_unused(ports_of(plan.run_dir.parent), older_than=_BUFFER_SECONDS)
    while True:
        began = time.time()
        verdict = seen_by_others(plan, _attempt(plan, training), _OTHERS_SECONDS)
        verdict = replace(verdict, attempt=plan.attempt, time=time.time())
        services.onlooker.ended(verdict)
        keep(plan, verdict, services)
        training.attempts.append(_attempted(plan, verdict, began))
        again = _next(plan, training, verdict)
        if isinstance(again, Verdict):
            if again != verdict:
                keep(plan, again, services)
            return again, training.attempts
        plan = again


def keep(plan: LaunchPlan, verdict: Verdict, services: Services) -> None:
    """Write the verdict to the run directory; where each host starts its own ranks, those of other hosts than the first
    to `status/node-N`, for the first one, which writes the run's.
    """
    folder = plan.run_dir if plan.leads else plan.run_dir / "status" / f"node-{plan.node}"
    try:
        folder.mkdir(exist_ok=True)
        write_verdict(folder, verdict)
    except OSError as error:
        services.onlooker.note(f"verdict.json cannot be written: {error.strerror or error}")


def seen_by_others(plan: LaunchPlan, verdict: Verdict, seconds: float) -> Verdict:
    """Where each host starts its own ranks, a rank here that lost a peer does not tell how that one ended. The other
    host's supervisor saw it and writes it within `seconds`; else the verdict stays.
    """
    if plan.node is None or not plan.leads or not verdict.crashed or not lost_peer(verdict.reason):
        return verdict
    folders = [plan.run_dir / "status" / f"node-{node}" for node in range(len(plan.hosts)) if node != plan.node]
    end, seen = time.monotonic() + seconds, list[Verdict]()
    while not seen and time.monotonic() < end:
        time.sleep(0.1)
        found = [read_verdict(folder) for folder in folders]
        seen = [v for v in found if v is not None and v.state == "failed" and not lost_peer(v.reason)]
    return min(seen, key=lambda v: v.time, default=verdict)


def _attempt(plan: LaunchPlan, training: _Training) -> Verdict:
    services = training.services
    shm.remove_unused({plan.port})
    log = log_name(plan.attempt) if plan.leads else f"host-{plan.hosts[plan.node or 0].name}.log"
    watch = Watch(plan, training.run, services, log, training.alive)
    watch.start()
    try:
        watch.until_end()
    finally:
        watch.end()
        shm.remove_unused({plan.port})
        if plan.local and not watch.survivors:  # with other hosts, a rank there may still be writing
            remove_unfinished(plan.run_dir)
            remove_empty(plan.run_dir)
    statuses, asked = read_statuses(plan.run_dir), services.signals.first
    told = _text(plan.run_dir / "stop")
    verdict = judge(
        statuses, plan.world, watch.code, watch.deaths, asked, killed=watch.killed, told=told, reaches=plan.reaches
    )
    if watch.lost is not None and verdict.state != "completed":
        training.lost.append(watch.lost.name)
        verdict = _cut_off(watch.lost, verdict)
    elif watch.hang is not None and verdict.state != "completed":
        host = statuses[watch.hang.rank].host if watch.hang.rank in statuses else ""
        hung = Verdict("failed", Exit.HUNG, watch.hang.reason, watch.hang.rank, host, verdict.step)
        verdict = replace(hung, cause=_HUNG)
    if watch.survivors:
        pids = ", ".join(str(p.pid) for p in watch.survivors)
        verdict = replace(verdict, notes=(*verdict.notes, f"these processes could not be killed: {pids}"))
    if watch.left_on_hosts:
        told = f"these could not be killed: {'; '.join(watch.left_on_hosts)}"
        verdict = replace(verdict, notes=(*verdict.notes, told))
    return verdict


def _cut_off(host: HostPlan, verdict: Verdict) -> Verdict:
    """Ranks that say that they lost a peer are not who failed."""
    reason = f"host {host.name} was cut off or switched off: nothing was heard of it for {SILENCE_SECONDS:.0f} s"
    return Verdict("failed", Exit.FINDINGS, reason, host.ranks[0], host.name, verdict.step, cause=_CUT_OFF)


def _attempted(plan: LaunchPlan, verdict: Verdict, began: float) -> Attempt:
    start = step_of(plan.resume) if plan.resume else 0
    saved = [step_of(path.parent) or 0 for path in (plan.run_dir / "checkpoints").glob("step-*/manifest.json")]
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


def _next(plan: LaunchPlan, training: _Training, verdict: Verdict) -> LaunchPlan | Verdict:
    """The plan of the next attempt, or the verdict that ends the run."""
    asked, signals, tell = training.run.spec.launch, training.services.signals, training.services.onlooker.note
    attempts = training.attempts
    if len(attempts) > 1:
        _record(plan.run_dir, attempts, training.services)
        verdict = replace(verdict, notes=(*verdict.notes, _history(attempts)))
    stop = plan.run_dir / "stop"
    if signals.received or (verdict.state == "failed" and stop.exists()):
        return verdict
    decision = decide(attempts, verdict, asked.max_restarts, asked.restart_delay_seconds)
    if decision.delay is None:
        told = decision.why if verdict.state == "failed" else ""
        return replace(verdict, notes=(*verdict.notes, told)) if told else verdict
    host = f" ({verdict.host})" if verdict.host else ""
    who = f" on rank {verdict.rank}{host}" if verdict.rank is not None else ""
    left = asked.max_restarts - len(attempts) + 1
    wait = format_seconds(decision.delay)
    tell(f"failed{who} at step {verdict.step}: {verdict.reason}; starting again in {wait}, {left} left")
    end = time.monotonic() + decision.delay
    while time.monotonic() < end:
        if signals.received or stop.exists():
            code = 128 + signals.received[0] if signals.received else Exit.INTERRUPTED
            reason = f"between two attempts; before: {verdict.reason}"
            name = signal.Signals(signals.received[0]).name if signals.received else ""
            last, notes = training.attempts[-1], verdict.notes
            stopped = Verdict("stopped", code, reason, step=verdict.step, notes=notes, signal=name)
            return replace(stopped, attempt=last.number, time=time.time())
        training.alive()
        time.sleep(0.1)
    return _again(_fewer(plan, training), training)


def _fewer(plan: LaunchPlan, training: _Training) -> LaunchPlan:
    """The plan without the hosts that were lost, where the spec lets it; else the same: they may return."""
    least, tell = training.run.spec.launch.min_hosts, training.services.onlooker.note
    hosts = {host.name for host in plan.hosts}
    lost = hosts & set(training.lost)
    if not lost or least is None or training.shrink is None or len(hosts - lost) < least:
        return plan
    made = training.shrink(training.lost)
    if isinstance(made, str):
        tell(f"it cannot go on without {', '.join(sorted(lost))}: {made}")
        return plan
    plan, training.run = made
    tell(f"going on without {', '.join(sorted(lost))}: {plan.world} ranks on {len(plan.hosts)} of the hosts")
    return plan


def _again(plan: LaunchPlan, training: _Training) -> LaunchPlan:
    """Make the run directory ready and choose where to go on from: this run's newest complete checkpoint, else the one
    that the run itself went on from, else the beginning.
    """
    tell = training.services.onlooker.note
    resume = newest_in(plan.run_dir, tell) or _first_resume(training.attempts)
    last = training.attempts[-1]
    reset(plan.run_dir, last.number)
    with contextlib.suppress(OSError):
        note_restart(plan.run_dir, last, resume, (step_of(resume) or 0) if resume else 0)
    _record(plan.run_dir, training.attempts, training.services)
    tell(f"attempt {last.number + 1} goes on from {resume}" if resume else f"attempt {last.number + 1} starts anew")
    fixed = training.run.spec.launch.master_port is not None or not plan.local
    return plan.again(last.number + 1, resume, plan.port if fixed else free_port())


def _first_resume(attempts: Sequence[Attempt]) -> Path | None:
    first = attempts[0].resumed_from
    return Path(first) if first else None


def _record(run_dir: Path, attempts: Sequence[Attempt], services: Services) -> None:
    try:
        record(run_dir, attempts)
    except OSError as error:
        services.onlooker.note(f"restarts.json cannot be written: {error.strerror or error}")


def _history(attempts: Sequence[Attempt]) -> str:
    causes = "; ".join(f"attempt {a.number} ended at step {a.step}: {a.cause}" for a in attempts[:-1])
    count = len(attempts) - 1
    return f"started again {count} time{'s' if count > 1 else ''}: {causes}"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
