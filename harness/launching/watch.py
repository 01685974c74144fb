"""Starts the launcher, watches over it and its ranks, and ends them all when asked to or when something broke.

Judges nothing: `harness.launching.verdict` says how the run ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from harness.launching.by_host import ByHost
from harness.launching.guards import Guards
from harness.launching.hangs import Hang, Pulse, describe
from harness.launching.noise import is_noise, is_step
from harness.launching.onlooker import Services
from harness.launching.output import Output, Tail
from harness.launching.plan import HostPlan, LaunchPlan
from harness.launching.processes import Process, before_exec, end_all, of_run, pending, read_process, send
from harness.launching.signals import name_of
from harness.launching.stacks import dump_stacks
from harness.launching.verdict import Death, Status, read_statuses, told_signal
from harness.plan.run import Run

_TICK = 0.1
_LOOK_EVERY = 0.5
_LEAVE_SECONDS = 4.0
"""How long the launcher may take to notice that its ranks are done; it looks once a second."""
_HANG_SECONDS = 60.0
"""How long processes may take to exit once every rank has said its last word. Freeing the memory of a large model takes
seconds; a minute means that one hangs in a library's exit handler, where nothing is left to be won by waiting."""
_REMOTE_SECONDS = 5.0
"""How long DeepSpeed's own handler may take to send `pkill` to the other hosts."""
_PEERS_SECONDS = 3.0
"""After one rank is lost, how long the others may take to say why they fail. DeepSpeed's launcher asks them by SIGTERM
to end and waits for half a minute, which a rank that waits in a collective for the lost one cannot do."""
_ASKING = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}


class Watch:
    """One launch from start to end. Use: `start`, `until_end`, then read `code`, `deaths`, `hang` and `statuses`."""

    def __init__(self, plan: LaunchPlan, run: Run, services: Services, log: str, alive: Callable[[], None]) -> None:
        self.plan, self.onlooker, self.signals = plan, services.onlooker, services.signals
        self._ahead = services.ahead
        self._alive = alive
        self.grace = run.spec.launch.stop_grace_seconds
        self.statuses: dict[int, Status] = {}
        self.deaths: list[Death] = []
        self.survivors: list[Process] = []
        self.hang: Hang | None = None
        self.killed = False
        """Whether a rank that had not said its last word had to be killed."""
        self.code = 0
        self.lost: HostPlan | None = None
        """The first host that was not heard of any more."""
        self.left_on_hosts: list[str] = []
        """Processes that other hosts could not end."""
        self._by_host = ByHost((host.name for host in plan.hosts), plan.run_dir / "logs")
        self._guards = Guards(plan, services.scripts, services.onlooker.note) if plan.reaches else None
        self._log = plan.run_dir / "logs" / log
        self._metrics = Tail(plan.run_dir / "metrics.jsonl")
        self._pulse = Pulse(run.spec.launch.hang_timeout_seconds, local=plan.local)
        self._looked = 0.0
        self._all_final_at: float | None = None
        self._lost_at: float | None = None
        self._ending = False
        """From here on ranks die because they are killed here: no deaths to judge by."""

    def start(self) -> None:
        """Start the launcher in a session of its own, so that Ctrl-C in the terminal reaches the harness alone."""
        waiting = self._ahead.orders(self.plan) if self._ahead and self.plan.attempt == 1 else None
        self._child = waiting or subprocess.Popen(  # noqa: S603
            self.plan.argv,
            cwd=self.plan.folder,
            env=self.plan.environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_exec,  # noqa: PLW1509  (no thread runs yet; only prctl and sigmask are called)
        )
        if self._child.stdout is None:
            raise AssertionError
        self._output = Output(self._child.stdout, self._log)
        if self._guards is not None:
            self._guards.start(self._child.pid)
        self.onlooker.started(self.plan.world, len(self.plan.hosts), self._log)

    def until_end(self) -> None:
        """Return when the launcher has ended and none of its processes is left on this machine."""
        while self._child.poll() is None:
            asked = self.signals.first or self._launcher_asked()
            if asked:
                self._stop(asked)
                break
            self._look()
            if self._hangs_at_exit():
                self.onlooker.note("every rank is done and something does not exit")
                break
            if self._lost_host() or self._lost_peers() or self._stands_still():
                break
            time.sleep(_TICK)
        self._look(now=True)
        self._wait_for_other_hosts()
        if -(self._child.poll() or 0) in _ASKING and self._trains() and not self.signals.received:
            self._stop(-self._child.returncode)  # who asks the launcher to end asks for the run to end
        self.end()

    def end(self) -> None:
        """Whatever is left of the run on this machine is ended, and what it had still to say is passed on.

        Ranks are killed, since SIGTERM would only ask them to save; the launcher then says how they ended.
        """
        first = not self._ending
        by_itself = self._child.poll() is not None
        codes = dict(self._by_host.codes)
        self._ending = True
        self._end_elsewhere()
        left = self._living()
        if left and self._child.poll() is None and self.plan.reaches:
            send([p for p in left if p.pid == self._child.pid], signal.SIGTERM)
            self._wait_child(_REMOTE_SECONDS)
            left = self._living()
        if left:
            if not self._all_final():
                self.killed = True
                self.onlooker.killing(len(left))
            ranks = {s.pid for s in self.statuses.values()}
            send([p for p in left if p.pid in ranks], signal.SIGKILL)
            if self._lost_at is not None:
                self._wait_child(_LEAVE_SECONDS)
            self.survivors = end_all(self._living, 0.4)
        self.code = self._child.wait()
        self._output.finish(2.0)
        self._look(now=True)
        self._by_host.close()
        if first and self.plan.reaches:
            # What a host's launcher says once its ranks were ended from here is of no account.
            self._read_codes(self._by_host.codes if by_itself else codes)

    def _read_codes(self, codes: Mapping[str, int]) -> None:
        """A host's launcher tells the signal that ended its first rank, if its guard has not seen it."""
        for host in self.plan.hosts:
            told = told_signal(codes.get(host.name, 0))
            silent = [r for r in host.ranks if r in self.statuses and not self.statuses[r].final]
            if told is None or not silent or any(d.told for d in self.deaths if d.rank in silent):
                continue
            seen = min((d for d in self.deaths if d.rank in silent), key=lambda d: (d.time, d.rank), default=None)
            rank = seen.rank if seen else silent[0]
            death = Death(rank, self.statuses[rank].pid, seen.time if seen else time.time(), told, told=True)
            self.deaths = [*(d for d in self.deaths if d is not seen), death]

    def _end_elsewhere(self) -> None:
        """Have the guards end what is left of the run on the other hosts; done once."""
        if self._guards is not None:
            self.killed = self.killed or not self._all_final()
            self.left_on_hosts = self._guards.end()
            self._guards = None
            self._wait_child(_LEAVE_SECONDS)  # pdsh ends when the ranks have, and says how

    def _stop(self, signum: int) -> None:
        """Ask the ranks to stop and wait for them; not when none trains yet, nor any longer after a second signal.

        After the notice of a pre-emption nobody is killed here: the scheduler does that, when it has to.
        """
        waiting = self._trains()
        notice = signum == signal.SIGUSR1
        (self.plan.run_dir / "stop").write_text(f"{name_of(signum)}\n", encoding="utf-8")
        self.onlooker.stopping(name_of(signum), None if notice else self.grace, waiting)
        grace = float("inf") if notice else self.grace
        end = time.monotonic() + (grace if waiting else 0.0)
        while time.monotonic() < end and not self.signals.insisted and self._trains():
            self._look(now=True)
            if self._all_final():
                self._wait_child(min(_LEAVE_SECONDS, max(1.0, end - time.monotonic())))
                return
            if self._lost_host() or self._lost_peers() or self._stands_still():
                return
            time.sleep(_TICK)

    def _trains(self) -> bool:
        """Whether a rank trains that is alive, as far as it can be seen from here."""
        self.statuses = {**self.statuses, **read_statuses(self.plan.run_dir)}
        running = [s for s in self.statuses.values() if s.state == "running"]
        if self.plan.reaches:
            return bool(running) and self._child.poll() is None
        return any(not self._is_gone(s.pid) for s in running if s.rank in self.plan.seen_ranks)

    def _launcher_asked(self) -> int | None:
        """SIGUSR1 to one of DeepSpeed's launcher processes, which know nothing of it: it is blocked there, and seen."""
        seen = [s for s in self.statuses.values() if s.rank in self.plan.seen_ranks]
        if not seen or not self._trains_said():
            return None
        rank = read_process(seen[0].pid)
        launchers = {self._child.pid, rank.parent if rank else self._child.pid}
        return signal.SIGUSR1 if any(pending(pid, signal.SIGUSR1) for pid in launchers) else None

    def _trains_said(self) -> bool:
        return any(s.state == "running" for s in self.statuses.values())

    def _all_final(self) -> bool:
        return len(self.statuses) == self.plan.world and all(s.final for s in self.statuses.values())

    def _hangs_at_exit(self) -> bool:
        """Whether the launcher is still there long after all its ranks said their last word; who asked for a stop is in
        a hurry.
        """
        if not self._all_final():
            return False
        if self._all_final_at is None:
            self._all_final_at = time.monotonic()
        stopped = any(s.state == "stopped" for s in self.statuses.values())
        return time.monotonic() - self._all_final_at > (_LEAVE_SECONDS if stopped else _HANG_SECONDS)

    def _lost_host(self) -> bool:
        """Whether a host that was heard of is not any more: it is switched off or cut off, and its ranks with it."""
        hosts = self._guards.lost() if self._guards is not None and not self._all_final() else []
        if hosts and self.lost is None:
            self.lost = hosts[0]
            self.onlooker.note(f"nothing is heard of host {self.lost.name} any more; ending the run")
        return self.lost is not None

    def _lost_peers(self) -> bool:
        """Whether a rank has been lost for so long that the others have said what they had to say."""
        failed = any(s.state == "failed" for s in self.statuses.values())
        if self._lost_at is None and (failed or self.deaths):
            self._lost_at = time.monotonic()
        return self._lost_at is not None and time.monotonic() - self._lost_at > _PEERS_SECONDS

    def _stands_still(self) -> bool:
        """Whether the run hangs; then every rank's stack has been written, as far as it can still do that."""
        seconds = self._pulse.hung(self.statuses)
        if seconds is None:
            return False
        found = describe(self.statuses, seconds, local=self.plan.local)
        self.onlooker.note(f"{found.reason}; ending the run")
        self.hang = dump_stacks(self.plan, self.statuses, found)
        return True

    def _wait_for_other_hosts(self) -> None:
        """Where each host starts its own ranks, those of this one may be done first."""
        end = time.monotonic() + _HANG_SECONDS
        mine = set(self.plan.seen_ranks)
        while self.plan.node is not None and time.monotonic() < end and not self.signals.insisted:
            states = {s.rank: s.state for s in self.statuses.values()}
            if (
                self._all_final()
                or "failed" in states.values()
                or any(states.get(rank) not in {"completed", "stopped"} for rank in mine)
            ):
                return
            time.sleep(_TICK)
            self._look()

    def _wait_child(self, seconds: float) -> None:
        """Until the launcher has ended, the seconds are over or a second signal came."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._child.poll() is None and not self.signals.insisted:
            self._look()
            time.sleep(_TICK)

    def _look(self, *, now: bool = False) -> None:
        """Pass on lines and metrics; twice a second read what the ranks say, and each time see whether one is gone."""
        for row in self._metrics.rows():
            self.onlooker.metrics(row)
        for line in self._output.lines():
            if not self.plan.reaches or not (is_noise(text := self._by_host.take(line)) or is_step(text)):
                self.onlooker.output(line)
        self._alive()
        if now or time.monotonic() - self._looked >= _LOOK_EVERY:
            self.statuses = {**self.statuses, **read_statuses(self.plan.run_dir)}
            self._looked = time.monotonic()
        if self._guards is not None and not self._ending:
            self._guards.look()
        if not self._ending:
            self._find_deaths()

    def _find_deaths(self) -> None:
        known = {d.rank for d in self.deaths}
        if self.plan.reaches:
            found = self._guards.deaths(self.statuses) if self._guards is not None else []
            self.deaths += [death for death in found if death.rank not in known]
            return
        for status in self.statuses.values():
            if status.final or status.rank in known or not status.pid or status.rank not in self.plan.seen_ranks:
                continue
            process = read_process(status.pid)
            if process is None or process.gone:
                self.deaths.append(
                    Death(status.rank, status.pid, time.time(), process.exit_signal if process else None)
                )

    def _is_gone(self, pid: int) -> bool:
        process = read_process(pid)
        return process is None or process.gone

    def _living(self) -> list[Process]:
        return of_run(self.plan.run_dir, self._child.pid)
