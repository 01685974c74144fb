"""The supervisor's ends of `node_agent.py`, one a host: who lives there, which host is not heard of any more.

One ssh a host, held for as long as the ranks run. Its silence, not the launcher's, tells that a host was cut off.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import harness
from harness.hostinfo.machine import host_identity
from harness.launching.hosts.ssh import encode_request, ssh_command
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise.run_verdict import RankExit, RankStatus

HOST_SILENCE_SECONDS = 20.0
"""After so long without a word, a host that was heard before is lost."""
SUPERVISOR_SILENCE_SECONDS = 30.0
"""After so long without a word of the supervisor, a guard ends the ranks of its host."""
_HEARTBEAT_SECONDS = 1.0
_KILL_TIMEOUT_SECONDS = 8.0
_MAX_BYTES = 65536


@dataclass(slots=True)
class NodeAgent:
    """One host's: its pids as that host counts them, and when it last said them."""

    host: HostPlan
    child: subprocess.Popen[bytes]
    last_heartbeat: float | None = None
    alive_pids: frozenset[int] = frozenset()
    exit_signals: dict[int, int] = field(default_factory=dict)
    """By pid, the signals that ended processes, as far as the guard saw them."""
    unkilled_pids: tuple[int, ...] | None = None
    is_closed: bool = False
    is_warned: bool = False
    buffer: bytes = b""

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since it was last heard; 0 before the first word."""
        return time.monotonic() - self.last_heartbeat if self.last_heartbeat is not None else 0.0


@dataclass(slots=True)
class NodeAgents:
    """All hosts' guards of one attempt. Use: `start`, `look` again and again, `end`."""

    plan: LaunchPlan
    scripts: Path
    log: Callable[[str], None]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    agents: list[NodeAgent] = field(default_factory=list)
    _last_beat_sent: float = 0.0
    _first_seen: dict[tuple[int, int], float] = field(default_factory=dict)

    def start(self, session: int) -> None:
        """One ssh a host; whether it comes up is seen later, and holds up nothing. `session` is the launcher's."""
        inherited = self.environ.get("PYTHONPATH", "").split(os.pathsep)
        request = {
            "run_dir": str(self.plan.run_dir),
            "port": self.plan.port,
            "silence": SUPERVISOR_SILENCE_SECONDS,
            "session": session,
            "supervisor": host_identity(),
            "path": [str(Path(harness.__file__ or "").resolve().parent.parent), *(p for p in inherited if p)],
        }
        words = [sys.executable, str(self.scripts / "node_agent.py"), encode_request(request)]
        for host in self.plan.hosts:
            child = subprocess.Popen(  # noqa: S603
                ssh_command(host.name, words),
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
        """Give a sign of life, read theirs."""
        now = time.monotonic()
        if now - self._last_beat_sent >= _HEARTBEAT_SECONDS:
            self._last_beat_sent = now
            self._broadcast(b"beat\n")
        for guard in self.agents:
            self._read_agent(guard)
            if guard.is_closed and guard.last_heartbeat is None and not _is_ssh_failure(guard) and not guard.is_warned:
                guard.is_warned = True
                self.log(f"no guard runs on {guard.host.name}: if it is cut off, nobody ends its ranks")

    def unreachable_hosts(self) -> list[HostPlan]:
        """Hosts that were heard before and are not any more, and those that ssh does not reach."""
        heard = [g for g in self.agents if g.last_heartbeat is not None and g.unkilled_pids is None]
        gone = [g for g in heard if g.is_closed or g.seconds_since_heartbeat > HOST_SILENCE_SECONDS]
        return [g.host for g in (*gone, *filter(_is_ssh_failure, self.agents))]

    def find_rank_exits(self, statuses: Mapping[int, RankStatus]) -> list[RankExit]:
        """Ranks that said nothing final and whose process is not there any more, on hosts that are heard."""
        found, now = [], time.monotonic()
        for guard in self.agents:
            if guard.last_heartbeat is None or guard.is_closed:
                continue
            for rank in guard.host.ranks:
                status = statuses.get(rank)
                if status is None or status.is_final or not status.pid:
                    continue
                first_seen = self._first_seen.setdefault((rank, status.pid), now)
                # Only a list that was made after the rank's first word can lack it for being gone.
                if guard.last_heartbeat > first_seen + 2 * _HEARTBEAT_SECONDS and status.pid not in guard.alive_pids:
                    signum = guard.exit_signals.get(status.pid)
                    found.append(
                        RankExit(
                            rank,
                            status.pid,
                            time.time() - guard.seconds_since_heartbeat,
                            signum,
                            reported_by_launcher=signum is not None,
                        )
                    )
        return found

    def kill_all(self) -> list[str]:
        """Have every process of the run on every host ended; returns what could not be, for people to read."""
        self._broadcast(b"end\n")
        waiting = [
            g
            for g in self.agents
            if g.last_heartbeat is not None and not g.is_closed and g.seconds_since_heartbeat <= HOST_SILENCE_SECONDS
        ]
        end = time.monotonic() + _KILL_TIMEOUT_SECONDS
        while any(g.unkilled_pids is None and not g.is_closed for g in waiting) and time.monotonic() < end:
            for guard in waiting:
                self._read_agent(guard)
            time.sleep(0.05)
        left = [f"{g.host.name}: {' '.join(map(str, g.unkilled_pids))}" for g in self.agents if g.unkilled_pids]
        for guard in self.agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(guard.child.pid, signal.SIGKILL)
            guard.child.wait()
            for pipe in (guard.child.stdin, guard.child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        return left

    def _broadcast(self, line: bytes) -> None:
        for guard in self.agents:
            if guard.child.stdin is not None and not guard.is_closed:
                with contextlib.suppress(OSError):  # a full pipe: the host is silent, which is seen by its silence
                    os.write(guard.child.stdin.fileno(), line)

    def _read_agent(self, guard: NodeAgent) -> None:
        if guard.child.stdout is None or guard.is_closed:
            return
        try:
            chunk = os.read(guard.child.stdout.fileno(), _MAX_BYTES)
        except OSError:
            return
        if not chunk:
            guard.is_closed = True
            return
        *lines, guard.buffer = (guard.buffer + chunk).split(b"\n")
        for line in lines:
            _handle_line(guard, line)


def _handle_line(guard: NodeAgent, line: bytes) -> None:
    try:
        said = json.loads(line)
        if "alive" in said:
            guard.last_heartbeat, guard.alive_pids = time.monotonic(), frozenset(map(int, said["alive"]))
            guard.exit_signals |= {int(pid): int(signum) for pid, signum in said.get("signals", {}).items()}
        elif "left" in said:
            guard.unkilled_pids = tuple(map(int, said["left"]))
    except (ValueError, TypeError, AttributeError):  # what a login shell says
        return


def _is_ssh_failure(guard: NodeAgent) -> bool:
    """Whether ssh itself gave up; any other end before the first word is the guard's own trouble."""
    return guard.last_heartbeat is None and guard.is_closed and guard.child.poll() == 255
