# SPDX-License-Identifier: Apache-2.0
"""The supervisor's side of the node agents (`node_agent.py`), one per host: live processes, heartbeats, lost hosts.

One ssh per host stays open while the ranks run. Without its heartbeats a host counts as cut off.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness import input_limits
from harness.file_io import parse_json
from harness.hostinfo.machine import host_identity
from harness.launching.hosts.ssh import SSH_FAILURE, encode_request, remote_python_path, ssh_command
from harness.launching.process.oom_kills import OomKillHistory
from harness.launching.setup.host_count import raise_open_file_limit
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise.own_disks import write_statuses
from harness.launching.supervise.run_verdict import RankExit
from harness.run_records.rank_statuses import RankStatus

HOST_SILENCE_SECONDS = 20.0
"""Seconds without a heartbeat after which a host is lost."""
SUPERVISOR_SILENCE_SECONDS = 30.0
"""Seconds without a heartbeat of the supervisor after which an agent kills the ranks of its host."""
_SIGNALS = signal.valid_signals()
_HEARTBEAT_SECONDS = 1.0
_KILL_TIMEOUT_SECONDS = 8.0
_MAX_BYTES = 65536
_MAX_CONNECTING = 256
"""Connections that are made at the same time: more would make each other late on the machine that launches."""
_START_SECONDS = 0.5
"""The time of one `poll` for starting them: meanwhile nobody reads the heartbeats of the others."""
_MAX_HOSTS_NAMED = 8
_CONNECTING_SECONDS = 10.0
"""The time for which a host without a heartbeat counts as one of them."""


@dataclass(slots=True)
class NodeAgent:
    """The agent of one host: its living pids as that host numbers them, and the time of its last heartbeat."""

    host: HostPlan
    child: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)
    last_heartbeat: float | None = None
    last_look: float | None = None
    """The heartbeat after which `find_rank_exits` last looked for its ranks."""
    rank_exits: list[RankExit] = field(default_factory=list)
    """The ranks that were gone then."""
    alive_pids: frozenset[int] = frozenset()
    exit_signals: dict[int, int] = field(default_factory=dict)
    """Pid -> the signal that killed it, as far as the agent saw it."""
    oom_kills: OomKillHistory = field(default_factory=OomKillHistory)
    unkilled_pids: tuple[int, ...] | None = None
    is_closed: bool = False
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
    _waiting_hosts: deque[HostPlan] = field(default_factory=deque)
    """Hosts whose agent is not started yet."""
    _command: list[str] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _closed_agents: list[NodeAgent] = field(default_factory=list)
    """Those that ended before their first heartbeat, until it is known how."""
    _num_missing_agents: int = 0
    _last_beat_sent: float = 0.0
    _first_seen: dict[tuple[int, int], float] = field(default_factory=dict)

    def start(self, session: int) -> None:
        """Start one ssh per host, without waiting for it; of many hosts the last ones with a later `poll`. `session` is
        the launcher's.
        """
        request = {
            "run_dir": str(self.plan.run_dir),
            "port": self.plan.port,
            "silence": SUPERVISOR_SILENCE_SECONDS,
            "session": session,
            "supervisor": host_identity(),
            "path": remote_python_path(self.environ),
            "own_disk": not self.plan.shared_disk,
        }
        self._command = [sys.executable, str(self.scripts / "node_agent.py"), encode_request(request)]
        self._waiting_hosts = deque(self.plan.hosts)
        raise_open_file_limit(len(self.plan.hosts))
        self._start_agents()

    def _start_agents(self) -> None:
        """Start as many of the waiting agents as may connect at the same time."""
        if not self._waiting_hosts:
            return
        now = time.monotonic()
        connecting = sum(
            agent.last_heartbeat is None and not agent.is_closed and now - agent.started_at < _CONNECTING_SECONDS
            for agent in self.agents[-_MAX_CONNECTING:]
        )
        for _ in range(min(len(self._waiting_hosts), _MAX_CONNECTING - connecting)):
            if time.monotonic() - now > _START_SECONDS:
                return
            host = self._waiting_hosts.popleft()
            child = subprocess.Popen(  # noqa: S603
                ssh_command(host.name, self._command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self.agents.append(NodeAgent(host, child))
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    os.set_blocking(pipe.fileno(), False)
            if child.stdout is not None:
                self._selector.register(child.stdout, selectors.EVENT_READ, self.agents[-1])

    def poll(self) -> None:
        """Send a heartbeat, read those of the agents."""
        now = time.monotonic()
        if now - self._last_beat_sent >= _HEARTBEAT_SECONDS:
            self._last_beat_sent = now
            self._broadcast(b"beat\n")
        self._read_agents(0.0)
        self._report_missing_agents()
        self._start_agents()

    def _read_agents(self, seconds: float) -> None:
        """Read what agents have sent; wait so long for the first of it."""
        for key, _ in self._selector.select(seconds):
            agent: NodeAgent = key.data
            self._read_agent(agent)
            if agent.is_closed:
                self._selector.unregister(key.fileobj)
                self._closed_agents += [agent] if agent.last_heartbeat is None else []

    def _report_missing_agents(self) -> None:
        """Log the hosts on which the agent ended before its first heartbeat, though ssh reached them."""
        ended = [agent for agent in self._closed_agents if agent.child.poll() is not None]
        if not ended:
            return
        self._closed_agents = [agent for agent in self._closed_agents if agent.child.returncode is None]
        names = [agent.host.name for agent in ended if not _is_ssh_failure(agent)]
        for name in names[: max(0, _MAX_HOSTS_NAMED - self._num_missing_agents)]:
            self.log(f"no node agent runs on {name}: if it is cut off, its ranks keep running")
        self._num_missing_agents += len(names)
        if self._num_missing_agents - len(names) <= _MAX_HOSTS_NAMED < self._num_missing_agents:
            self.log("no node agent runs on further hosts, which are not listed")

    def unreachable_hosts(self, silence: float = HOST_SILENCE_SECONDS) -> list[HostPlan]:
        """Hosts without heartbeat for so many seconds, and those that ssh does not reach."""
        started = [a for a in self.agents if a.last_heartbeat is not None and a.unkilled_pids is None]
        silent = [a for a in started if a.is_closed or a.seconds_since_heartbeat > silence]
        return [a.host for a in (*silent, *filter(_is_ssh_failure, self.agents))]

    def find_rank_exits(self, statuses: Mapping[int, RankStatus]) -> list[RankExit]:
        """Ranks without a final status whose process is gone, on hosts that send heartbeats."""
        rank_exits: list[RankExit] = []
        for agent in self.agents:
            if agent.last_heartbeat is None or agent.is_closed:
                continue
            if agent.last_heartbeat != agent.last_look:  # only a heartbeat has news
                agent.last_look = agent.last_heartbeat
                agent.rank_exits = list(self._rank_exits_of(agent, agent.last_heartbeat, statuses))
            rank_exits += agent.rank_exits
        return rank_exits

    def _rank_exits_of(
        self, agent: NodeAgent, last_heartbeat: float, statuses: Mapping[int, RankStatus]
    ) -> Iterator[RankExit]:
        now = time.monotonic()
        for rank in agent.host.ranks:
            status = statuses.get(rank)
            if status is None or status.is_final or not status.pid:
                continue
            first_seen = self._first_seen.setdefault((rank, status.pid), now)
            # Only in a list from after the rank's first status does a missing pid mean that it is gone.
            if last_heartbeat > first_seen + 2 * _HEARTBEAT_SECONDS and status.pid not in agent.alive_pids:
                signum = agent.exit_signals.get(status.pid)
                yield RankExit(
                    rank,
                    status.pid,
                    time.time() - agent.seconds_since_heartbeat,
                    signum,
                    reported_by_launcher=signum is not None,
                    ran_out_of_memory=agent.oom_kills.has_risen(),
                )

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
            self._read_agents(0.05)
        unkilled = [f"{a.host.name}: {' '.join(map(str, a.unkilled_pids))}" for a in self.agents if a.unkilled_pids]
        for agent in self.agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.child.pid, signal.SIGKILL)
        for agent in self.agents:
            agent.child.wait()
            for pipe in (agent.child.stdin, agent.child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._selector.close()
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
            signals = {int(pid): int(signum) for pid, signum in message.get("signals", {}).items()}
            agent.exit_signals = {pid: signum for pid, signum in signals.items() if signum in _SIGNALS}
        elif "left" in message:
            agent.unkilled_pids = tuple(map(int, message["left"]))
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):  # a line of a login shell
        return


def _is_ssh_failure(agent: NodeAgent) -> bool:
    """True if ssh itself failed; any other end before the first heartbeat is the agent's own failure."""
    return agent.last_heartbeat is None and agent.is_closed and agent.child.poll() == SSH_FAILURE
