"""Starts the launcher, watches over it and its ranks, and ends them all when asked to or when something broke.

Judges nothing: `harness.launching.supervise.run_verdict` says how the run ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from harness.launching.hosts.pdsh_output import PdshDemux
from harness.launching.process.processes import (
    Process,
    find_run_processes,
    is_signal_pending,
    kill_all,
    read_process,
    send_signal,
    set_up_child,
)
from harness.launching.process.signals import signal_name
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise.hang_detector import Hang, HangDetector, describe_hang
from harness.launching.supervise.log_filter import is_noise, is_progress_line
from harness.launching.supervise.log_streams import JsonlTail, LauncherOutput
from harness.launching.supervise.node_agents import NodeAgents
from harness.launching.supervise.run_verdict import RankExit, RankStatus, read_statuses, signal_of_exit_code
from harness.launching.supervise.stack_dumps import dump_stacks
from harness.plan.resolved_run import ResolvedRun

_TICK_SECONDS = 0.1
_STATUS_POLL_SECONDS = 0.5
_LAUNCHER_EXIT_SECONDS = 4.0
"""How long the launcher may take to notice that its ranks are done; it looks once a second."""
_EXIT_HANG_SECONDS = 60.0
"""How long processes may take to exit once every rank has said its last word. Freeing the memory of a large model takes
seconds; a minute means that one hangs in a library's exit handler, where nothing is left to be won by waiting."""
_PKILL_SECONDS = 5.0
"""How long DeepSpeed's own handler may take to send `pkill` to the other hosts."""
_PEER_REPORT_SECONDS = 3.0
"""After one rank is lost, how long the others may take to say why they fail. DeepSpeed's launcher asks them by SIGTERM
to end and waits for half a minute, which a rank that waits in a collective for the lost one cannot do."""
_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}


class RankMonitor:
    """One launch from start to end. Use: `start`, `until_end`, then read `code`, `deaths`, `hang` and `statuses`."""

    def __init__(
        self, plan: LaunchPlan, run: ResolvedRun, services: LaunchContext, log: str, alive: Callable[[], None]
    ) -> None:
        self.plan, self.observer, self.signals = plan, services.observer, services.signals
        self._prewarmed_launcher = services.prewarmed_launcher
        self._heartbeat = alive
        self.grace_seconds = run.spec.launch.stop_grace_seconds
        self.statuses: dict[int, RankStatus] = {}
        self.rank_exits: list[RankExit] = []
        self.unkilled_processes: list[Process] = []
        self.hang: Hang | None = None
        self.ranks_killed = False
        """Whether a rank that had not said its last word had to be killed."""
        self.exit_code = 0
        self.lost_host: HostPlan | None = None
        """The first host that was not heard of any more."""
        self.unkilled_on_hosts: list[str] = []
        """Processes that other hosts could not end."""
        self._pdsh_output = PdshDemux((host.name for host in plan.hosts), plan.run_dir / "logs")
        self._node_agents = (
            NodeAgents(plan, services.scripts, services.observer.on_note) if plan.starts_remote_ranks else None
        )
        self._log = plan.run_dir / "logs" / log
        self._metrics = JsonlTail(plan.run_dir / "metrics.jsonl")
        self._hang_detector = HangDetector(run.spec.launch.hang_timeout_seconds, local=plan.local)
        self._last_poll = 0.0
        self._all_final_since: float | None = None
        self._first_loss_at: float | None = None
        self._is_terminating = False
        """From here on ranks die because they are killed here: no deaths to judge by."""

    def start(self) -> None:
        """Start the launcher in a session of its own, so that Ctrl-C in the terminal reaches the harness alone."""
        waiting = (
            self._prewarmed_launcher.run(self.plan) if self._prewarmed_launcher and self.plan.attempt == 1 else None
        )
        self._child = waiting or subprocess.Popen(  # noqa: S603
            self.plan.argv,
            cwd=self.plan.cwd,
            env=self.plan.environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=set_up_child,  # noqa: PLW1509  (no thread runs yet; only prctl and sigmask are called)
        )
        if self._child.stdout is None:
            raise AssertionError
        self._output = LauncherOutput(self._child.stdout, self._log)
        if self._node_agents is not None:
            self._node_agents.start(self._child.pid)
        self.observer.on_start(self.plan.world_size, len(self.plan.hosts), self._log)

    def wait(self) -> None:
        """Return when the launcher has ended and none of its processes is left on this machine."""
        while self._child.poll() is None:
            asked = self.signals.first or self._find_launcher_signal()
            if asked:
                self._stop_ranks(asked)
                break
            self._poll()
            if self._is_hung_at_exit():
                self.observer.on_note("every rank is done and something does not exit")
                break
            if self._has_lost_host() or self._has_lost_rank() or self._is_hung():
                break
            time.sleep(_TICK_SECONDS)
        self._poll(force=True)
        self._wait_for_other_hosts()
        if -(self._child.poll() or 0) in _STOP_SIGNALS and self._is_training() and not self.signals.received:
            self._stop_ranks(-self._child.returncode)  # who asks the launcher to end asks for the run to end
        self.terminate_ranks()

    def terminate_ranks(self) -> None:
        """Whatever is left of the run on this machine is ended, and what it had still to say is passed on.

        Ranks are killed, since SIGTERM would only ask them to save; the launcher then says how they ended.
        """
        first = not self._is_terminating
        by_itself = self._child.poll() is not None
        codes = dict(self._pdsh_output.exit_codes)
        self._is_terminating = True
        self._kill_on_other_hosts()
        left = self._find_processes()
        if left and self._child.poll() is None and self.plan.starts_remote_ranks:
            send_signal([p for p in left if p.pid == self._child.pid], signal.SIGTERM)
            self._wait_for_launcher(_PKILL_SECONDS)
            left = self._find_processes()
        if left:
            if not self._all_ranks_final():
                self.ranks_killed = True
                self.observer.on_kill(len(left))
            ranks = {s.pid for s in self.statuses.values()}
            send_signal([p for p in left if p.pid in ranks], signal.SIGKILL)
            if self._first_loss_at is not None:
                self._wait_for_launcher(_LAUNCHER_EXIT_SECONDS)
            self.unkilled_processes = kill_all(self._find_processes, 0.4)
        self.exit_code = self._child.wait()
        self._output.wait(2.0)
        self._poll(force=True)
        self._pdsh_output.close()
        if first and self.plan.starts_remote_ranks:
            # What a host's launcher says once its ranks were ended from here is of no account.
            self._apply_host_exit_codes(self._pdsh_output.exit_codes if by_itself else codes)

    def _apply_host_exit_codes(self, codes: Mapping[str, int]) -> None:
        """A host's launcher tells the signal that ended its first rank, if its guard has not seen it."""
        for host in self.plan.hosts:
            told = signal_of_exit_code(codes.get(host.name, 0))
            silent = [r for r in host.ranks if r in self.statuses and not self.statuses[r].is_final]
            if told is None or not silent or any(d.reported_by_launcher for d in self.rank_exits if d.rank in silent):
                continue
            seen = min((d for d in self.rank_exits if d.rank in silent), key=lambda d: (d.time, d.rank), default=None)
            rank = seen.rank if seen else silent[0]
            death = RankExit(
                rank, self.statuses[rank].pid, seen.time if seen else time.time(), told, reported_by_launcher=True
            )
            self.rank_exits = [*(d for d in self.rank_exits if d is not seen), death]

    def _kill_on_other_hosts(self) -> None:
        """Have the guards end what is left of the run on the other hosts; done once."""
        if self._node_agents is not None:
            self.ranks_killed = self.ranks_killed or not self._all_ranks_final()
            self.unkilled_on_hosts = self._node_agents.kill_all()
            self._node_agents = None
            self._wait_for_launcher(_LAUNCHER_EXIT_SECONDS)  # pdsh ends when the ranks have, and says how

    def _stop_ranks(self, signum: int) -> None:
        """Ask the ranks to stop and wait for them; not when none trains yet, nor any longer after a second signal.

        After the notice of a pre-emption nobody is killed here: the scheduler does that, when it has to.
        """
        waiting = self._is_training()
        notice = signum == signal.SIGUSR1
        (self.plan.run_dir / "stop").write_text(f"{signal_name(signum)}\n", encoding="utf-8")
        self.observer.on_stop(signal_name(signum), None if notice else self.grace_seconds, waiting)
        grace = float("inf") if notice else self.grace_seconds
        end = time.monotonic() + (grace if waiting else 0.0)
        while time.monotonic() < end and not self.signals.is_repeated and self._is_training():
            self._poll(force=True)
            if self._all_ranks_final():
                self._wait_for_launcher(min(_LAUNCHER_EXIT_SECONDS, max(1.0, end - time.monotonic())))
                return
            if self._has_lost_host() or self._has_lost_rank() or self._is_hung():
                return
            time.sleep(_TICK_SECONDS)

    def _is_training(self) -> bool:
        """Whether a rank trains that is alive, as far as it can be seen from here."""
        self.statuses = {**self.statuses, **read_statuses(self.plan.run_dir)}
        running = [s for s in self.statuses.values() if s.state == "running"]
        if self.plan.starts_remote_ranks:
            return bool(running) and self._child.poll() is None
        return any(not self._has_exited(s.pid) for s in running if s.rank in self.plan.local_ranks)

    def _find_launcher_signal(self) -> int | None:
        """SIGUSR1 to one of DeepSpeed's launcher processes, which know nothing of it: it is blocked there, and seen."""
        seen = [s for s in self.statuses.values() if s.rank in self.plan.local_ranks]
        if not seen or not self._has_running_rank():
            return None
        rank = read_process(seen[0].pid)
        launchers = {self._child.pid, rank.parent_pid if rank else self._child.pid}
        return signal.SIGUSR1 if any(is_signal_pending(pid, signal.SIGUSR1) for pid in launchers) else None

    def _has_running_rank(self) -> bool:
        return any(s.state == "running" for s in self.statuses.values())

    def _all_ranks_final(self) -> bool:
        return len(self.statuses) == self.plan.world_size and all(s.is_final for s in self.statuses.values())

    def _is_hung_at_exit(self) -> bool:
        """Whether the launcher is still there long after all its ranks said their last word; who asked for a stop is in
        a hurry.
        """
        if not self._all_ranks_final():
            return False
        if self._all_final_since is None:
            self._all_final_since = time.monotonic()
        stopped = any(s.state == "stopped" for s in self.statuses.values())
        return time.monotonic() - self._all_final_since > (_LAUNCHER_EXIT_SECONDS if stopped else _EXIT_HANG_SECONDS)

    def _has_lost_host(self) -> bool:
        """Whether a host that was heard of is not any more: it is switched off or cut off, and its ranks with it."""
        hosts = (
            self._node_agents.unreachable_hosts()
            if self._node_agents is not None and not self._all_ranks_final()
            else []
        )
        if hosts and self.lost_host is None:
            self.lost_host = hosts[0]
            self.observer.on_note(f"nothing is heard of host {self.lost_host.name} any more; ending the run")
        return self.lost_host is not None

    def _has_lost_rank(self) -> bool:
        """Whether a rank has been lost for so long that the others have said what they had to say."""
        failed = any(s.state == "failed" for s in self.statuses.values())
        if self._first_loss_at is None and (failed or self.rank_exits):
            self._first_loss_at = time.monotonic()
        return self._first_loss_at is not None and time.monotonic() - self._first_loss_at > _PEER_REPORT_SECONDS

    def _is_hung(self) -> bool:
        """Whether the run hangs; then every rank's stack has been written, as far as it can still do that."""
        seconds = self._hang_detector.stalled_seconds(self.statuses)
        if seconds is None:
            return False
        found = describe_hang(self.statuses, seconds, local=self.plan.local)
        self.observer.on_note(f"{found.reason}; ending the run")
        self.hang = dump_stacks(self.plan, self.statuses, found)
        return True

    def _wait_for_other_hosts(self) -> None:
        """Where each host starts its own ranks, those of this one may be done first."""
        end = time.monotonic() + _EXIT_HANG_SECONDS
        mine = set(self.plan.local_ranks)
        while self.plan.node_rank is not None and time.monotonic() < end and not self.signals.is_repeated:
            states = {s.rank: s.state for s in self.statuses.values()}
            if (
                self._all_ranks_final()
                or "failed" in states.values()
                or any(states.get(rank) not in {"completed", "stopped"} for rank in mine)
            ):
                return
            time.sleep(_TICK_SECONDS)
            self._poll()

    def _wait_for_launcher(self, seconds: float) -> None:
        """Until the launcher has ended, the seconds are over or a second signal came."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._child.poll() is None and not self.signals.is_repeated:
            self._poll()
            time.sleep(_TICK_SECONDS)

    def _poll(self, *, force: bool = False) -> None:
        """Pass on lines and metrics; twice a second read what the ranks say, and each time see whether one is gone."""
        for row in self._metrics.pop_rows():
            self.observer.on_metrics(row)
        for line in self._output.pop_lines():
            if not self.plan.starts_remote_ranks or not (
                is_noise(text := self._pdsh_output.feed(line)) or is_progress_line(text)
            ):
                self.observer.on_output(line)
        self._heartbeat()
        if force or time.monotonic() - self._last_poll >= _STATUS_POLL_SECONDS:
            self.statuses = {**self.statuses, **read_statuses(self.plan.run_dir)}
            self._last_poll = time.monotonic()
        if self._node_agents is not None and not self._is_terminating:
            self._node_agents.poll()
        if not self._is_terminating:
            self._find_rank_exits()

    def _find_rank_exits(self) -> None:
        known = {d.rank for d in self.rank_exits}
        if self.plan.starts_remote_ranks:
            found = self._node_agents.find_rank_exits(self.statuses) if self._node_agents is not None else []
            self.rank_exits += [death for death in found if death.rank not in known]
            return
        for status in self.statuses.values():
            if status.is_final or status.rank in known or not status.pid or status.rank not in self.plan.local_ranks:
                continue
            process = read_process(status.pid)
            if process is None or process.has_exited:
                self.rank_exits.append(
                    RankExit(status.rank, status.pid, time.time(), process.exit_signal if process else None)
                )

    def _has_exited(self, pid: int) -> bool:
        process = read_process(pid)
        return process is None or process.has_exited

    def _find_processes(self) -> list[Process]:
        return find_run_processes(self.plan.run_dir, self._child.pid)
