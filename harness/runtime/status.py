"""What each rank says about itself, in `status/rank-NNNNN.json`: the supervisor decides by these files how a run ended,
and by their silence that it hangs.

Progress for people is elsewhere (`progress.py`), numbers for machines too (`metrics.py`).
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.files import replace_file
from harness.runtime.rundir import RunDir

RankState = Literal["starting", "running", "completed", "stopped", "failed"]
Phase = Literal["start", "data", "step", "save", "eval", "end"]
_EVERY_SECONDS = 1.0


@dataclass(slots=True)
class Status:
    """Writes this rank's file. A rank that moves on writes at most once a second; a change of state or phase is written
    at once. Nothing is written where nothing moved.
    """

    run_dir: RunDir
    rank: int
    state: RankState = "starting"
    step: int = 0
    checkpoint: str | None = None
    phase: Phase = "start"
    on_progress: Callable[[Phase], None] | None = None
    """Called whenever this rank gets on: the watchdog."""
    _written: float = field(default=0.0)

    def set(
        self,
        state: RankState,
        *,
        step: int | None = None,
        error: str | None = None,
        checkpoint: str | None = None,
        refused: bool = False,
    ) -> None:
        """Say it. `error` is for `failed`, with `refused` when it is a finding about the user's input; `checkpoint`
        names the last complete one.
        """
        changed = state != self.state or error is not None or checkpoint is not None
        if state == "running" and self.state != "running":
            self.phase = "step"
        self.state = state
        self.step = self.step if step is None else step
        self.checkpoint = checkpoint or self.checkpoint
        self._moved(changed, error=error, refused=refused)

    def beat(self) -> None:
        """Something got on that is no step, such as a batch of an evaluation."""
        self._moved(False)

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """What happens inside is of this phase, which has a time limit of its own."""
        before, self.phase = self.phase, phase
        self._moved(True)
        yield
        self.phase = before
        self._moved(True)

    def _moved(self, now: bool, *, error: str | None = None, refused: bool = False) -> None:
        if self.on_progress is not None:
            self.on_progress(self.phase)
        if now or time.monotonic() - self._written >= _EVERY_SECONDS:
            self._write(error, refused)

    def _write(self, error: str | None, refused: bool) -> None:
        body: dict[str, Any] = {
            "rank": self.rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "state": self.state,
            "phase": self.phase,
            "step": self.step,
        }
        if error is not None:
            body |= {"error": error, "refused": refused}
        if self.checkpoint is not None:
            body["checkpoint"] = self.checkpoint
        body["time"] = time.time()
        self.run_dir.status.mkdir(parents=True, exist_ok=True)
        replace_file(self.run_dir.status / f"rank-{self.rank:05d}.json", json.dumps(body) + "\n", durable=False)
        self._written = time.monotonic()
