# SPDX-License-Identifier: Apache-2.0
"""Jobs that are all there at once and take steps by turns, so that a machine whose speed drifts hits all of them alike.

`Turns` is the side that deals turns out; each rank has a `Place`, whose `ended` stands where an optimizer step ends and
waits there until its job's next turn. No benchmark.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Turns:
    """Of one job: a pair of pipes for each of its ranks, in `folder`."""

    folder: Path
    ranks: int
    _go: list[int] = field(default_factory=list)
    _done: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        for name, opened in (("go", self._go), ("done", self._done)):
            for rank in range(self.ranks):
                pipe = self.folder / f"{name}-{rank}"
                os.mkfifo(pipe)
                opened.append(os.open(pipe, os.O_RDWR))

    def give(self) -> None:
        """Let all its ranks go on; they do not say when they are done, see `wait`."""
        for pipe in self._go:
            os.write(pipe, b"g")

    def wait(self, lives: Callable[[], bool], limit: float = 600.0) -> None:
        """Until every rank has taken its turn. `SystemExit` where the job does not live any more, or takes too long."""
        deadline = time.monotonic() + limit
        for pipe in self._done:
            while not select.select([pipe], [], [], 0.5)[0]:
                if not lives() or time.monotonic() > deadline:
                    raise SystemExit(f"{self.folder.name}: a rank has ended or hangs")
            os.read(pipe, 1)


@dataclass
class Place:
    """A rank's: `warm_up` steps, then turns of `steps` each. Seconds by the wall and of this process's CPU time, a list
    a turn, without the turn's first step, which finds the caches as another job left them.
    """

    folder: Path
    rank: int
    warm_up: int
    turns: int
    steps: int
    wall: list[list[float]] = field(default_factory=list)
    cpu: list[list[float]] = field(default_factory=list)
    _ended: int = 0
    _begun: tuple[float, float] = (0.0, 0.0)

    @property
    def all_steps(self) -> int:
        return self.warm_up + self.turns * self.steps

    def ended(self) -> None:
        """An optimizer step is over."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._ended += 1
        inside = self._ended - self.warm_up
        if inside > 0:
            if inside % self.steps == 1:
                self.wall.append([])
                self.cpu.append([])
            else:
                self.wall[-1].append(wall - self._begun[0])
                self.cpu[-1].append(cpu - self._begun[1])
        if inside >= 0 and inside % self.steps == 0:
            self._hand_over()
        self._begun = time.perf_counter(), time.process_time()

    def _hand_over(self) -> None:
        with (self.folder / f"done-{self.rank}").open("wb", buffering=0) as done:
            done.write(b"d")
        with (self.folder / f"go-{self.rank}").open("rb", buffering=0) as go:
            go.read(1)
