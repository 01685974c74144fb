"""The supervisor's ends of `launch/guard.py`, one a host: who lives there, which host is not heard of any more.

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
from harness.facts.machine import host_identity
from harness.launching.plan import HostPlan, LaunchPlan
from harness.launching.remote import encoded, ssh
from harness.launching.verdict import Death, Status

SILENCE_SECONDS = 20.0
"""After so long without a word, a host that was heard before is lost."""
GUARD_SILENCE_SECONDS = 30.0
"""After so long without a word of the supervisor, a guard ends the ranks of its host."""
_BEAT_SECONDS = 1.0
_END_SECONDS = 8.0
_MOST_BYTES = 65536


@dataclass(slots=True)
class Guard:
    """One host's: its pids as that host counts them, and when it last said them."""

    host: HostPlan
    child: subprocess.Popen[bytes]
    heard: float | None = None
    alive: frozenset[int] = frozenset()
    signals: dict[int, int] = field(default_factory=dict)
    """By pid, the signals that ended processes, as far as the guard saw them."""
    left: tuple[int, ...] | None = None
    closed: bool = False
    told: bool = False
    rest: bytes = b""

    @property
    def silent(self) -> float:
        """Seconds since it was last heard; 0 before the first word."""
        return time.monotonic() - self.heard if self.heard is not None else 0.0


@dataclass(slots=True)
class Guards:
    """All hosts' guards of one attempt. Use: `start`, `look` again and again, `end`."""

    plan: LaunchPlan
    scripts: Path
    note: Callable[[str], None]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    guards: list[Guard] = field(default_factory=list)
    _beaten: float = 0.0
    _first_seen: dict[tuple[int, int], float] = field(default_factory=dict)

    def start(self, session: int) -> None:
        """One ssh a host; whether it comes up is seen later, and holds up nothing. `session` is the launcher's."""
        inherited = self.environ.get("PYTHONPATH", "").split(os.pathsep)
        request = {
            "run_dir": str(self.plan.run_dir),
            "port": self.plan.port,
            "silence": GUARD_SILENCE_SECONDS,
            "session": session,
            "supervisor": host_identity(),
            "path": [str(Path(harness.__file__ or "").resolve().parent.parent), *(p for p in inherited if p)],
        }
        words = [sys.executable, str(self.scripts / "guard.py"), encoded(request)]
        for host in self.plan.hosts:
            child = subprocess.Popen(  # noqa: S603
                ssh(host.name, words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    os.set_blocking(pipe.fileno(), False)
            self.guards.append(Guard(host, child))

    def look(self) -> None:
        """Give a sign of life, read theirs."""
        now = time.monotonic()
        if now - self._beaten >= _BEAT_SECONDS:
            self._beaten = now
            self._say(b"beat\n")
        for guard in self.guards:
            self._read(guard)
            if guard.closed and guard.heard is None and not _unreached(guard) and not guard.told:
                guard.told = True
                self.note(f"no guard runs on {guard.host.name}: if it is cut off, nobody ends its ranks")

    def lost(self) -> list[HostPlan]:
        """Hosts that were heard before and are not any more, and those that ssh does not reach."""
        heard = [g for g in self.guards if g.heard is not None and g.left is None]
        gone = [g for g in heard if g.closed or g.silent > SILENCE_SECONDS]
        return [g.host for g in (*gone, *filter(_unreached, self.guards))]

    def deaths(self, statuses: Mapping[int, Status]) -> list[Death]:
        """Ranks that said nothing final and whose process is not there any more, on hosts that are heard."""
        found, now = [], time.monotonic()
        for guard in self.guards:
            if guard.heard is None or guard.closed:
                continue
            for rank in guard.host.ranks:
                status = statuses.get(rank)
                if status is None or status.final or not status.pid:
                    continue
                first_seen = self._first_seen.setdefault((rank, status.pid), now)
                # Only a list that was made after the rank's first word can lack it for being gone.
                if guard.heard > first_seen + 2 * _BEAT_SECONDS and status.pid not in guard.alive:
                    signum = guard.signals.get(status.pid)
                    found.append(Death(rank, status.pid, time.time() - guard.silent, signum, told=signum is not None))
        return found

    def end(self) -> list[str]:
        """Have every process of the run on every host ended; returns what could not be, for people to read."""
        self._say(b"end\n")
        waiting = [g for g in self.guards if g.heard is not None and not g.closed and g.silent <= SILENCE_SECONDS]
        end = time.monotonic() + _END_SECONDS
        while any(g.left is None and not g.closed for g in waiting) and time.monotonic() < end:
            for guard in waiting:
                self._read(guard)
            time.sleep(0.05)
        left = [f"{g.host.name}: {' '.join(map(str, g.left))}" for g in self.guards if g.left]
        for guard in self.guards:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(guard.child.pid, signal.SIGKILL)
            guard.child.wait()
            for pipe in (guard.child.stdin, guard.child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        return left

    def _say(self, line: bytes) -> None:
        for guard in self.guards:
            if guard.child.stdin is not None and not guard.closed:
                with contextlib.suppress(OSError):  # a full pipe: the host is silent, which is seen by its silence
                    os.write(guard.child.stdin.fileno(), line)

    def _read(self, guard: Guard) -> None:
        if guard.child.stdout is None or guard.closed:
            return
        try:
            chunk = os.read(guard.child.stdout.fileno(), _MOST_BYTES)
        except OSError:
            return
        if not chunk:
            guard.closed = True
            return
        *lines, guard.rest = (guard.rest + chunk).split(b"\n")
        for line in lines:
            _hear(guard, line)


def _hear(guard: Guard, line: bytes) -> None:
    try:
        said = json.loads(line)
        if "alive" in said:
            guard.heard, guard.alive = time.monotonic(), frozenset(map(int, said["alive"]))
            guard.signals |= {int(pid): int(signum) for pid, signum in said.get("signals", {}).items()}
        elif "left" in said:
            guard.left = tuple(map(int, said["left"]))
    except (ValueError, TypeError, AttributeError):  # what a login shell says
        return


def _unreached(guard: Guard) -> bool:
    """Whether ssh itself gave up; any other end before the first word is the guard's own trouble."""
    return guard.heard is None and guard.closed and guard.child.poll() == 255
