# SPDX-License-Identifier: Apache-2.0
"""The end of an attempt's ranks: a stop that lets them finish their step and save (Ctrl-C, SIGTERM, SIGUSR1), and the
kill of every process that is left.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Mapping

from harness.launching.process.processes import Process, kill_all, send_signal
from harness.launching.process.signals import MAX_STOP_GRACE_SECONDS, signal_name
from harness.launching.supervise.monitor import LAUNCHER_EXIT_SECONDS, TICK_SECONDS, RankMonitor
from harness.launching.supervise.run_verdict import RankExit, signal_of_exit_code
from harness.spec.sections.launch_spec import LaunchSpec

_STEPS_OF_GRACE = 3
_PKILL_SECONDS = 5.0
"""The limit for DeepSpeed's own handler to send `pkill` to the other hosts."""


def grace_seconds(launch: LaunchSpec, step_seconds: Collection[float], save_seconds: float) -> float:
    """The seconds for the ranks to finish their step and save: `launch.stop_grace_seconds`, or where the spec leaves it
    to the default, a few measured steps and a save, if these take longer.
    """
    if "stop_grace_seconds" in launch.model_fields_set:
        return launch.stop_grace_seconds
    measured = _STEPS_OF_GRACE * max(step_seconds, default=0.0) + save_seconds
    return max(launch.stop_grace_seconds, min(measured, MAX_STOP_GRACE_SECONDS))


class RankTermination:
    """Stops and kills the ranks of one attempt. Use `stop_ranks` if a signal came, then always `terminate_ranks`."""

    def __init__(self, monitor: RankMonitor, launch: LaunchSpec) -> None:
        self._monitor, self._launch = monitor, launch
        self.ranks_killed = False
        """True if a rank without final status had to be killed."""
        self.exceeded_grace: float | None = None
        """The seconds that a stop gave to the ranks, where these trained on after them."""
        self.launcher_ended_here = False
        """Did the launcher still run when `terminate_ranks` began?"""
        self.exit_code = 0
        """The launcher's exit code."""
        self.unkilled_processes: list[Process] = []
        self.unkilled_on_hosts: list[str] = []
        """Processes that other hosts could not kill."""

    def stop_ranks(self, signum: int) -> None:
        """Ask the ranks to stop and wait for them. There is no wait while none trains, nor after a second signal.

        After the notice of a pre-emption nothing is killed here: the scheduler does that.
        """
        is_training = self._monitor.is_training()
        is_notice = signum == signal.SIGUSR1
        grace = float("inf") if is_notice else self._grace_seconds()
        self._monitor.observer.on_stop(signal_name(signum), None if is_notice else grace, is_training)
        self._stop_ranks(signal_name(signum), grace, is_training=is_training)

    def stop_to_restart(self, text: str) -> None:
        """Ask the ranks to stop and wait for them, so that the next attempt starts on other hosts."""
        self._stop_ranks(text, self._grace_seconds(), is_training=self._monitor.is_training())

    def _grace_seconds(self) -> float:
        return grace_seconds(self._launch, self._monitor.step_seconds, self._monitor.save_seconds)

    def _stop_ranks(self, text: str, grace: float, *, is_training: bool) -> None:
        monitor = self._monitor
        try:
            (monitor.plan.run_dir / "stop").write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            self._signal_ranks(error)
        deadline = time.monotonic() + (grace if is_training else 0.0)
        while time.monotonic() < deadline and not monitor.signals.is_repeated and monitor.is_training():
            monitor.poll(force=True)
            if monitor.all_ranks_final():
                monitor.wait_for_launcher(min(LAUNCHER_EXIT_SECONDS, max(1.0, deadline - time.monotonic())))
                return
            if monitor.is_broken():
                return
            time.sleep(TICK_SECONDS)
        if is_training and monitor.is_training() and not monitor.signals.is_repeated:
            self.exceeded_grace = grace

    def _signal_ranks(self, error: OSError) -> None:
        """Ask the ranks of this machine by SIGTERM, where the file `stop` cannot be written: all ranks agree on a stop
        that one of them is asked for.
        """
        reason = (error.strerror or str(error)).lower()
        self._monitor.observer.on_note(f"the file `stop` cannot be written ({reason}); asking the ranks by SIGTERM")
        rank_pids = {status.pid for status in self._monitor.statuses.values() if not status.is_final}
        send_signal([p for p in self._monitor.find_processes() if p.pid in rank_pids], signal.SIGTERM)

    def terminate_ranks(self) -> None:
        """Kill the remaining processes of the run on this machine, and pass on the remaining output.

        Ranks are killed, since SIGTERM would only ask them to save; the launcher then says how they ended.
        """
        monitor = self._monitor
        is_first_call = not monitor.is_terminating
        exited_alone = monitor.child.poll() is not None
        self.launcher_ended_here = self.launcher_ended_here or not exited_alone
        exit_codes = dict(monitor.pdsh_output.exit_codes)
        monitor.is_terminating = True
        self._kill_on_other_hosts()
        processes = monitor.find_processes()
        if processes and monitor.child.poll() is None and monitor.plan.starts_remote_ranks:
            send_signal([p for p in processes if p.pid == monitor.child.pid], signal.SIGTERM)
            monitor.wait_for_launcher(_PKILL_SECONDS)
            processes = monitor.find_processes()
        if processes:
            if not monitor.all_ranks_final():
                self.ranks_killed = True
                monitor.observer.on_kill(len(processes))
            rank_pids = {status.pid for status in monitor.statuses.values()}
            send_signal([p for p in processes if p.pid in rank_pids], signal.SIGKILL)
            if monitor.first_loss_at is not None:
                monitor.wait_for_launcher(LAUNCHER_EXIT_SECONDS)
            self.unkilled_processes = kill_all(monitor.find_processes, 0.4)
        self.exit_code = monitor.child.wait()
        monitor.finish_output()
        if is_first_call and monitor.plan.starts_remote_ranks:
            # Exit codes of a host's launcher are ignored once its ranks were killed from here.
            _apply_host_exit_codes(monitor, monitor.pdsh_output.exit_codes if exited_alone else exit_codes)

    def _kill_on_other_hosts(self) -> None:
        """Let the node agents kill the remaining processes on the other hosts; done once."""
        monitor = self._monitor
        if monitor.node_agents is not None:
            self.ranks_killed = self.ranks_killed or not monitor.all_ranks_final()
            self.unkilled_on_hosts = monitor.node_agents.kill_all()
            monitor.node_agents = None
            monitor.wait_for_launcher(LAUNCHER_EXIT_SECONDS)  # pdsh ends when the ranks have, and says how


def _apply_host_exit_codes(monitor: RankMonitor, exit_codes: Mapping[str, int]) -> None:
    """The exit code of a host's launcher names the signal that ended its first rank, if its agent has not seen it."""
    exits_by_rank = {rank_exit.rank: rank_exit for rank_exit in monitor.rank_exits}
    for host in monitor.plan.hosts:
        signum = signal_of_exit_code(exit_codes.get(host.name, 0))
        unfinished = [r for r in host.ranks if r in monitor.statuses and not monitor.statuses[r].is_final]
        exits = [exits_by_rank[rank] for rank in unfinished if rank in exits_by_rank]
        if signum is None or not unfinished or any(e.reported_by_launcher for e in exits):
            continue
        observed = min(exits, key=lambda e: (e.time, e.rank), default=None)
        rank = observed.rank if observed else unfinished[0]
        exit_time = observed.time if observed else time.time()
        reported = RankExit(
            rank,
            monitor.statuses[rank].pid,
            exit_time,
            signum,
            reported_by_launcher=True,
            ran_out_of_memory=observed.ran_out_of_memory if observed else None,
        )
        exits_by_rank[rank] = reported
    monitor.rank_exits = list(exits_by_rank.values())
