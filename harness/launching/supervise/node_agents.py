# SPDX-License-Identifier: Apache-2.0
"""The supervisor's side of the node agents (`node_agent.py`), one per host: live processes, heartbeats, lost hosts.

One ssh per host stays open while the ranks run. Without its heartbeats a host counts as cut off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness import input_limits
from harness.file_io import parse_json
from harness.hostinfo.machine import host_identity
from harness.launching.hosts.ssh import encode_request, remote_python_path, ssh_command
from harness.launching.process.oom_kills import OomKillHistory
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise.own_disks import write_statuses
from harness.launching.supervise.run_verdict import RankExit
from harness.run_records.rank_statuses import RankStatus

HOST_SILENCE_SECONDS = 20.0
"""Seconds without a heartbeat after which a host is lost."""
SUPERVISOR_SILENCE_SECONDS = 30.0
"""Seconds without a heartbeat of the supervisor after which an agent kills the ranks of its host."""
_HEARTBEAT_SECONDS = 1.0
_KILL_TIMEOUT_SECONDS = 8.0
_MAX_BYTES = 65536


@dataclass(slots=True)
class NodeAgent:
    """The agent of one host: its living pids as that host numbers them, and the time of its last heartbeat."""

    host: HostPlan
    child: subprocess.Popen[bytes]
    last_heartbeat: float | None = None
    alive_pids: frozenset[int] = frozenset()
    exit_signals: dict[int, int] = field(default_factory=dict)
    """Pid -> the signal that killed it, as far as the agent saw it."""
    oom_kills: OomKillHistory = field(default_factory=OomKillHistory)
    unkilled_pids: tuple[int, ...] | None = None
    is_closed: bool = False
    is_warned: bool = False
    buffer: bytes = b""

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the last heartbeat; 0 before the first."""
        return time.monotonic() - self.last_heartbeat if self.last_heartbeat is not None else 0.0


@dataclass(slots=True)
class NodeAgents:
    """The agents of all hosts in one attempt. Use: `start`, `poll` repeatedly, `kill_all`."""

    plan: LaunchPlan
    scripts: Path
    log: Callable[[str], None]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    agents: list[NodeAgent] = field(default_factory=list)
    _last_beat_sent: float = 0.0
    _first_seen: dict[tuple[int, int], float] = field(default_factory=dict)

    def start(self, session: int) -> None:
        """Start one ssh per host, without waiting for it. `session` is the launcher's."""
        request = {
            "run_dir": str(self.plan.run_dir),
            "port": self.plan.port,
            "silence": SUPERVISOR_SILENCE_SECONDS,
            "session": session,
            "supervisor": host_identity(),
            "path": remote_python_path(self.environ),
            "own_disk": not self.plan.shared_disk,
        }
        command = [sys.executable, str(self.scripts / "node_agent.py"), encode_request(request)]
        for host in self.plan.hosts:
            child = subprocess.Popen(  # noqa: S603
                ssh_command(host.name, command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    os.set_blocking(pipe.fileno(), False)
            self.agents.append(NodeAgent(host, child))

    def poll(self) -> None:
        """Send a heartbeat, read those of the agents."""
        now = time.monotonic()
        if now - self._last_beat_sent >= _HEARTBEAT_SECONDS:
            self._last_beat_sent = now
            self._broadcast(b"beat\n")
        for agent in self.agents:
            self._read_agent(agent)
            if agent.is_closed and agent.last_heartbeat is None and not _is_ssh_failure(agent) and not agent.is_warned:
                agent.is_warned = True
                self.log(f"no node agent runs on {agent.host.name}: if it is cut off, its ranks keep running")

    def unreachable_hosts(self) -> list[HostPlan]:
        """Hosts without heartbeat, and those that ssh does not reach."""
        started = [a for a in self.agents if a.last_heartbeat is not None and a.unkilled_pids is None]
        silent = [a for a in started if a.is_closed or a.seconds_since_heartbeat > HOST_SILENCE_SECONDS]
        return [a.host for a in (*silent, *filter(_is_ssh_failure, self.agents))]

    def find_rank_exits(self, statuses: Mapping[int, RankStatus]) -> list[RankExit]:
        """Ranks without a final status whose process is gone, on hosts that send heartbeats."""
        rank_exits, now = [], time.monotonic()
        for agent in self.agents:
            if agent.last_heartbeat is None or agent.is_closed:
                continue
            for rank in agent.host.ranks:
                status = statuses.get(rank)
                if status is None or status.is_final or not status.pid:
                    continue
                first_seen = self._first_seen.setdefault((rank, status.pid), now)
                # Only in a list from after the rank's first status does a missing pid mean that it is gone.
                if agent.last_heartbeat > first_seen + 2 * _HEARTBEAT_SECONDS and status.pid not in agent.alive_pids:
                    signum = agent.exit_signals.get(status.pid)
                    rank_exits.append(
                        RankExit(
                            rank,
                            status.pid,
                            time.time() - agent.seconds_since_heartbeat,
                            signum,
                            reported_by_launcher=signum is not None,
                            ran_out_of_memory=agent.oom_kills.has_risen(),
                        )
                    )
        return rank_exits

    def kill_all(self) -> list[str]:
        """Let the agents kill every process of the run on every host; returns the survivors, as text."""
        self._broadcast(b"end\n")
        reachable = [
            a
            for a in self.agents
            if a.last_heartbeat is not None and not a.is_closed and a.seconds_since_heartbeat <= HOST_SILENCE_SECONDS
        ]
        deadline = time.monotonic() + _KILL_TIMEOUT_SECONDS
        while any(a.unkilled_pids is None and not a.is_closed for a in reachable) and time.monotonic() < deadline:
            for agent in reachable:
                self._read_agent(agent)
            time.sleep(0.05)
        unkilled = [f"{a.host.name}: {' '.join(map(str, a.unkilled_pids))}" for a in self.agents if a.unkilled_pids]
        for agent in self.agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.child.pid, signal.SIGKILL)
            agent.child.wait()
            for pipe in (agent.child.stdin, agent.child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        return unkilled

    def _broadcast(self, line: bytes) -> None:
        for agent in self.agents:
            if agent.child.stdin is not None and not agent.is_closed:
                with contextlib.suppress(OSError):  # a full pipe: the host is silent, and counts as lost later
                    os.write(agent.child.stdin.fileno(), line)

    def _read_agent(self, agent: NodeAgent) -> None:
        if agent.child.stdout is None or agent.is_closed:
            return
        try:
            chunk = os.read(agent.child.stdout.fileno(), _MAX_BYTES)
        except OSError:
            return
        if not chunk:
            agent.is_closed = True
            return
        *lines, agent.buffer = (agent.buffer + chunk).split(b"\n")
        if len(agent.buffer) > input_limits.AGENT_LINE:  # no heartbeat is so long
            agent.buffer = b""
        for line in lines:
            _handle_line(agent, line, None if self.plan.shared_disk or agent.host.is_local else self.plan.run_dir)


def _handle_line(agent: NodeAgent, line: bytes, run_dir: Path | None) -> None:
    """`run_dir`: where the statuses of a host go that has only its own disk."""
    try:
        message = parse_json(line)
        if run_dir is not None and isinstance(message.get("statuses"), dict):
            write_statuses(run_dir, agent.host.ranks, message["statuses"])
        if "alive" in message:
            agent.last_heartbeat, agent.alive_pids = time.monotonic(), frozenset(map(int, message["alive"]))
            oom_kills = message.get("oom_kills")
            agent.oom_kills.add(oom_kills if isinstance(oom_kills, int) else None)
            agent.exit_signals |= {int(pid): int(signum) for pid, signum in message.get("signals", {}).items()}
        elif "left" in message:
            agent.unkilled_pids = tuple(map(int, message["left"]))
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):  # a line of a login shell
        return


def _is_ssh_failure(agent: NodeAgent) -> bool:
    """True if ssh itself failed; any other end before the first heartbeat is the agent's own failure."""
    return agent.last_heartbeat is None and agent.is_closed and agent.child.poll() == 255
