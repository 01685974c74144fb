# SPDX-License-Identifier: Apache-2.0
"""The hosts that a run lost and goes on without: whether they answer again, and those that are lost again and again.

Asks them over ssh, one short command each, while the others train. Restarts nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.launching.hosts.ssh import ssh_command

MAX_LOSSES = 3
"""A host that was lost so often is left out for good."""
CHECK_SECONDS = 10.0
"""Between two questions to the same host."""
_ANSWERS_IN_A_ROW = 2
"""A host answers again once it has answered so often: one that comes and goes would cost a restart each time."""
_MAX_CHECK_SECONDS = 20.0
_MAX_CHECKS = 64
"""Hosts that are asked at the same time."""
RETURN_TEXT = "hosts answer again"
"""What the file `stop` says where the ranks stop for them."""


@dataclass(slots=True)
class LostHosts:
    """Use: `add` those that are lost, `poll` while an attempt runs without them, `take_back` before the next one."""

    run_dir: Path
    names: set[str] = field(default_factory=set)
    """The hosts that the next attempt does without."""
    _losses: Counter[str] = field(default_factory=Counter)
    _answers: Counter[str] = field(default_factory=Counter)
    """Answers of each host in a row."""
    _checks: dict[str, tuple[subprocess.Popen[bytes], float]] = field(default_factory=dict)
    _next_check: dict[str, float] = field(default_factory=dict)
    _num_saves: int | None = None
    """The saves of this attempt when a host answered again."""
    _refused: frozenset[str] = frozenset()
    sick: set[str] = field(default_factory=set)
    """Those that answer, but whose hardware failed: they are not taken back."""

    @property
    def answering(self) -> frozenset[str]:
        """Those that answer again, without those that were lost too often."""
        return frozenset(name for name in self.names - self.left_out if self._answers[name] >= _ANSWERS_IN_A_ROW)

    @property
    def left_out(self) -> frozenset[str]:
        """Those that are sick or were lost too often."""
        return frozenset(name for name in self.names if name in self.sick or self._losses[name] >= MAX_LOSSES)

    def add(self, lost: Collection[str], used: Collection[str]) -> None:
        """These were lost in the attempt that has ended, the others that it used were not."""
        self.names -= set(used) - self.sick
        for name in lost:
            self._losses[name] += 1
            self._answers[name] = 0
            self._next_check[name] = time.monotonic() + CHECK_SECONDS
        self.names |= set(lost)

    def leave_out(self, hosts: Collection[str]) -> None:
        """Do without these for good: their hardware failed."""
        self.names |= set(hosts)
        self.sick |= set(hosts)

    def poll(self, num_saves: int) -> bool:
        """Ask the hosts whose turn it is. True if this attempt has saved since one of them answers again, so that the
        ranks can stop to take it back; `num_saves` are the saves of the attempt so far.
        """
        self._start_checks()
        for name, (child, deadline) in list(self._checks.items()):
            code = child.poll()
            if code is None and time.monotonic() < deadline:
                continue
            self._end_check(name)
            self._answers[name] = self._answers[name] + 1 if code == 0 else 0
        if not self.answering or self.answering == self._refused:
            self._num_saves = None
        elif self._num_saves is None:
            self._num_saves = num_saves
        return self._num_saves is not None and num_saves > self._num_saves

    def take_back(self) -> list[str]:
        """Those that answer again, which the next attempt no longer does without."""
        self.close()
        returned = sorted(self.answering)
        self.names -= set(returned)
        return returned

    def refuse(self, returned: Collection[str]) -> None:
        """The run cannot continue with these: they stay lost until others answer, too."""
        self.names |= set(returned)
        self._refused = frozenset(returned)

    def close(self) -> None:
        """End the checks that still run."""
        self._num_saves = None
        for name in list(self._checks):
            self._end_check(name)

    def _start_checks(self) -> None:
        now = time.monotonic()
        for name in sorted(self.names - self.left_out - self._checks.keys()):
            if len(self._checks) >= _MAX_CHECKS:
                return
            if now < self._next_check.get(name, 0.0):
                continue
            self._next_check[name] = now + CHECK_SECONDS
            with contextlib.suppress(OSError):
                self._checks[name] = (_start_check(name, self.run_dir), now + _MAX_CHECK_SECONDS)

    def _end_check(self, name: str) -> None:
        child, _ = self._checks.pop(name)
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _start_check(name: str, run_dir: Path) -> subprocess.Popen[bytes]:
    """Does a host see the run directory? Exit code 0 if so."""
    words: Sequence[str] = ("test", "-f", str(run_dir / "launch.json"))
    return subprocess.Popen(  # noqa: S603
        ssh_command(name, words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
