# SPDX-License-Identifier: Apache-2.0
"""Starts the launcher of one attempt and monitors it and its ranks: output, statuses, exits, hangs, lost hosts.

`termination` kills the ranks, `run_verdict` decides the verdict.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from harness.launching.hosts.pdsh_output import PdshDemux
from harness.launching.process.oom_kills import OomKillHistory, read_oom_kills
from harness.launching.process.processes import (
    Process,
    find_run_processes,
    is_signal_pending,
    read_process,
    set_up_child,
)
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise.hang_detector import Hang, HangDetector, describe_hang
from harness.launching.supervise.log_filter import is_noise, is_progress_line
from harness.launching.supervise.log_streams import JsonlTail, LauncherOutput
from harness.launching.supervise.node_agents import HOST_SILENCE_SECONDS, NodeAgents
from harness.launching.supervise.run_verdict import RankExit
from harness.launching.supervise.stack_dumps import dump_stacks
from harness.progress import START_UP
from harness.run_records.rank_statuses import RankStatus, StatusReader
from harness.spec.sections.launch_spec import LaunchSpec
from harness.units import finite_number

TICK_SECONDS = 0.1
_STATUS_POLL_SECONDS = 0.5
_STATUS_SLICE_SECONDS = 0.05
"""The time of one look at statuses: of many ranks or on a slow file system, a look at all of them takes several."""
LAUNCHER_EXIT_SECONDS = 4.0
"""The limit for the launcher to notice that its ranks are done; it looks once a second."""
_EXIT_HANG_SECONDS = 60.0
"""The limit for processes to exit once every rank has a final status. Freeing the memory of a large model takes
seconds; a minute means that one hangs in a library's exit handler, and more time would not help."""
_RECENT_STEPS = 5
_PEER_REPORT_SECONDS = 3.0
"""Time for the other ranks to write their errors after one rank is lost. DeepSpeed's launcher sends them SIGTERM
and waits for half a minute; a rank that waits in a collective for the lost one cannot end by itself."""


class RankMonitor:
    """One attempt while it runs. Use: `start`, then `poll` until `child` has ended or a predicate is true."""

    def __init__(
        self, plan: LaunchPlan, launch: LaunchSpec, context: LaunchContext, log: str, heartbeat: Callable[[], None]
    ) -> None:
        self.plan, self.observer, self.signals = plan, context.observer, context.signals
        self._status_reader = StatusReader(plan.run_dir, plan.world_size)
        self.statuses = self._status_reader.statuses
        self.rank_exits: list[RankExit] = []
        self.hang: Hang | None = None
        self.lost_hosts: list[HostPlan] = []
        """The first host that fell silent, and those that were silent with it."""
        self.first_loss_at: float | None = None
        """Monotonic time of the first rank that failed or exited."""
        self.last_step = 0
        """The last step of this attempt in metrics.jsonl; statuses are written once a second."""
        self.step_seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        """Of the last steps, as rank 0 measured them."""
        self.num_saves = 0
        """The saves of this attempt in metrics.jsonl."""
        self.save_seconds = 0.0
        """Those that the last save took from training."""
        self.is_terminating = False
        """Set once the supervisor starts to kill ranks; later exits are not failures."""
        self.pdsh_output = PdshDemux((host.name for host in plan.hosts), plan.run_dir / "logs")
        self.node_agents = (
            NodeAgents(plan, context.scripts, context.observer.on_note) if plan.starts_remote_ranks else None
        )
        self._prewarmed_launcher = context.prewarmed_launcher if plan.attempt == 1 else None
        self._heartbeat, self._notify = heartbeat, context.notify
        self._log = plan.run_dir / "logs" / log
        self._oom_kills = OomKillHistory()
        self._metrics = JsonlTail(plan.run_dir / "metrics.jsonl")
        self._hang_detector = HangDetector(launch.hang_timeout_seconds, local=plan.local)
        self._last_poll = 0.0
        self._activity = ""
        self._all_final_since: float | None = None

    def start(self) -> None:
        """Start the launcher in a session of its own, so that Ctrl-C in the terminal reaches the harness alone."""
        prewarmed = self._prewarmed_launcher.run(self.plan) if self._prewarmed_launcher else None
        self.child = prewarmed or subprocess.Popen(  # noqa: S603
            self.plan.argv,
            cwd=self.plan.cwd,
            env=self.plan.environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=set_up_child,  # noqa: PLW1509  (no thread runs yet; only prctl and sigmask are called)
        )
        if self.child.stdout is None:
            raise AssertionError
        self._output = LauncherOutput(self.child.stdout, self._log)
        if self.node_agents is not None:
            self.node_agents.start(self.child.pid)
        self.observer.on_start(self.plan.world_size, len(self.plan.hosts), self._log)

    def is_training(self) -> bool:
        """True if a live rank has entered the training loop (best effort for remote hosts)."""
        self._status_reader.refresh()
        running = [s for s in self.statuses.values() if s.state == "running"]
        if self.plan.starts_remote_ranks:
            return bool(running) and self.child.poll() is None
        return any(not _has_exited(s.pid) for s in running if s.rank in self.plan.local_ranks)

    def find_launcher_signal(self) -> int | None:
        """SIGUSR1 that is pending at one of DeepSpeed's launcher processes, where it is blocked; None without one."""
        local_statuses = [s for s in self.statuses.values() if s.rank in self.plan.local_ranks]
        if not local_statuses or not any(s.state == "running" for s in self.statuses.values()):
            return None
        rank = read_process(local_statuses[0].pid)
        launchers = {self.child.pid, rank.parent_pid if rank else self.child.pid}
        return signal.SIGUSR1 if any(is_signal_pending(pid, signal.SIGUSR1) for pid in launchers) else None

    def all_ranks_final(self) -> bool:
        """True if every rank has a final status."""
        return len(self.statuses) == self.plan.world_size and all(s.is_final for s in self.statuses.values())

    def is_hung_at_exit(self) -> bool:
        """True if the launcher still runs long after all ranks have a final status; after a stop it gets less time."""
        if not self.all_ranks_final():
            return False
        if self._all_final_since is None:
            self._all_final_since = time.monotonic()
        stopped = any(s.state == "stopped" for s in self.statuses.values())
        return time.monotonic() - self._all_final_since > (LAUNCHER_EXIT_SECONDS if stopped else _EXIT_HANG_SECONDS)

    def is_broken(self) -> bool:
        """True if a host or a rank is lost or the run hangs, so that it cannot continue."""
        return self._has_lost_host() or self._has_lost_rank() or self._is_hung()

    def _has_lost_host(self) -> bool:
        """True if a host sends no heartbeat: it is switched off or cut off, and its ranks with it."""
        hosts = (
            self.node_agents.unreachable_hosts() if self.node_agents is not None and not self.all_ranks_final() else []
        )
        if hosts and not self.lost_hosts and self.node_agents is not None:
            others = self.node_agents.unreachable_hosts(HOST_SILENCE_SECONDS / 2)
            self.lost_hosts = [hosts[0], *(host for host in others if host is not hosts[0])]
            self.observer.on_note(f"no heartbeat from {name_hosts(self.lost_hosts)}; ending the run")
        return bool(self.lost_hosts)

    def _has_lost_rank(self) -> bool:
        """True if a rank was lost so long ago that the others have written their errors."""
        failed = any(s.state == "failed" for s in self.statuses.values())
        if self.first_loss_at is None and (failed or self.rank_exits):
            self.first_loss_at = time.monotonic()
        return self.first_loss_at is not None and time.monotonic() - self.first_loss_at > _PEER_REPORT_SECONDS

    def _is_hung(self) -> bool:
        """True if the run hangs; requests a stack dump of every rank first."""
        seconds = self._hang_detector.stalled_seconds(self.statuses)
        if seconds is None:
            return False
        hang = describe_hang(self.statuses, seconds, local=self.plan.local)
        self.observer.on_note(f"{hang.reason}; ending the run")
        self._notify("stall", hang.reason)
        self.hang = dump_stacks(self.plan, self.statuses, hang)
        return True

    def wait_for_other_hosts(self) -> None:
        """With `--no-ssh` the ranks of this host may end first: wait for the others."""
        deadline = time.monotonic() + _EXIT_HANG_SECONDS
        while self.plan.node_rank is not None and time.monotonic() < deadline and not self.signals.is_repeated:
            states = {s.rank: s.state for s in self.statuses.values()}
            if (
                self.all_ranks_final()
                or "failed" in states.values()
                or any(states.get(rank) not in {"completed", "stopped"} for rank in self.plan.local_ranks)
            ):
                return
            time.sleep(TICK_SECONDS)
            self.poll()

    def wait_for_launcher(self, seconds: float) -> None:
        """Poll until the launcher has ended, the time is over or a second signal arrives."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.child.poll() is None and not self.signals.is_repeated:
            self.poll()
            time.sleep(TICK_SECONDS)

    def finish_output(self) -> None:
        """Pass on the last output of the launcher, which has ended."""
        self._output.wait(2.0)
        self.poll(force=True)
        self.pdsh_output.close()

    def poll(self, *, force: bool = False) -> None:
        """Pass on lines and metrics, look for ranks that exited, and twice a second read the statuses."""
        for row in self._metrics.pop_rows():
            if row.get("type") == "step":
                self.last_step = int(finite_number(row.get("step")) or self.last_step)
                self.step_seconds.append(finite_number(row.get("seconds")) or 0.0)
            elif row.get("type") == "save":
                self.num_saves += 1
                self.save_seconds = finite_number(row.get("seconds")) or 0.0
            self.observer.on_metrics(row)
        for line in self._output.pop_lines():
            if self._status_reader.read_line(line):
                continue
            if not self.plan.starts_remote_ranks or not (
                is_noise(text := self.pdsh_output.feed(line)) or is_progress_line(text)
            ):
                self.observer.on_output(line)
        self._heartbeat()
        self._oom_kills.add(read_oom_kills())
        self._read_statuses(force=force)
        if self.node_agents is not None and not self.is_terminating:
            self.node_agents.poll()
        if not self.is_terminating:
            self._find_rank_exits()

    def _read_statuses(self, *, force: bool) -> None:
        if force:
            self._status_reader.refresh()
        elif self._status_reader.is_mid_pass or time.monotonic() - self._last_poll >= _STATUS_POLL_SECONDS:
            self._status_reader.refresh(_STATUS_SLICE_SECONDS)
        else:
            return
        self._last_poll = time.monotonic()
        if not self._status_reader.is_mid_pass:
            self._report_start_up()

    def _report_start_up(self) -> None:
        """Pass on what the ranks do before their first step, when it changes."""
        activity = describe_start_up(self.statuses, self.plan.world_size)
        if activity != self._activity and not self.is_terminating:
            self._activity = activity
            self.observer.on_start_up(activity)

    def _find_rank_exits(self) -> None:
        known = {rank_exit.rank for rank_exit in self.rank_exits}
        if self.plan.starts_remote_ranks:
            exits = self.node_agents.find_rank_exits(self.statuses) if self.node_agents is not None else []
            for rank_exit in exits:
                if rank_exit.rank not in known:
                    self._status_reader.refresh_rank(rank_exit.rank)  # the last look at its status may be seconds old
                    self.rank_exits += [] if self.statuses[rank_exit.rank].is_final else [rank_exit]
            return
        for status in self.statuses.values():
            if status.is_final or status.rank in known or not status.pid or status.rank not in self.plan.local_ranks:
                continue
            process = read_process(status.pid)
            if process is None or process.has_exited:
                self._oom_kills.add(read_oom_kills())  # again: the kernel may have killed it since the last one
                signum, oom = process.exit_signal if process else None, self._oom_kills.has_risen()
                rank_exit = RankExit(status.rank, status.pid, time.time(), signum, ran_out_of_memory=oom)
                self.rank_exits.append(rank_exit)

    def find_processes(self) -> list[Process]:
        """Living processes of the run on this machine."""
        return find_run_processes(self.plan.run_dir, self.child.pid)


def name_hosts(hosts: Sequence[HostPlan]) -> str:
    """`host worker-1`, or `host worker-1 and 2 more hosts`."""
    others = len(hosts) - 1
    return f"host {hosts[0].name}" + (f" and {others} more host{'s' if others > 1 else ''}" if others else "")


def _has_exited(pid: int) -> bool:
    process = read_process(pid)
    return process is None or process.has_exited


def describe_start_up(statuses: Mapping[int, RankStatus], world_size: int) -> str:
    """The phase of the rank that is furthest behind, and how many are in it where not all are; empty once all have
    taken a step or one has ended.
    """
    if any(status.is_final for status in statuses.values()):
        return ""
    activities = [_activity_of(statuses.get(rank)) for rank in range(world_size)]
    behind = min(activities)
    if behind == len(START_UP):
        return ""
    count = activities.count(behind)
    return START_UP[behind] + (f" ({count} of {world_size} ranks)" if count < world_size else "")


def _activity_of(status: RankStatus | None) -> int:
    """The index of its activity in START_UP; past the last one if it is not there, since the rank then trains."""
    if status is None:
        return 0
    return START_UP.index(status.activity) if status.activity in START_UP else len(START_UP)
