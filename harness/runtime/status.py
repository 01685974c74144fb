"""What each rank says about itself, in `status/rank-NNNNN.json`: the supervisor decides by these files how a run ended.

Progress for people is elsewhere (`progress.py`), numbers for machines too (`metrics.py`).
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass, field
from typing import Literal

from harness.runtime.rundir import RunDir, write_atomically

RankState = Literal["starting", "running", "completed", "stopped", "failed"]
_EVERY_SECONDS = 1.0


@dataclass(slots=True)
class Status:
    """Writes this rank's file. A running rank writes at most once a second; a change of state is written at once."""

    run_dir: RunDir
    rank: int
    state: RankState = "starting"
    step: int = 0
    checkpoint: str | None = None
    _written: float = field(default=0.0)

    def set(
        self, state: RankState, *, step: int | None = None, error: str | None = None, checkpoint: str | None = None
    ) -> None:
        """Say it. `error` is for `failed`; `checkpoint` names the last complete one."""
        changed = state != self.state or error is not None or checkpoint is not None
        self.state = state
        self.step = self.step if step is None else step
        self.checkpoint = checkpoint or self.checkpoint
        if changed or time.monotonic() - self._written >= _EVERY_SECONDS:
            self._write(error)

    def _write(self, error: str | None) -> None:
        body = {
            "rank": self.rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "state": self.state,
            "step": self.step,
        }
        if error is not None:
            body["error"] = error
        if self.checkpoint is not None:
            body["checkpoint"] = self.checkpoint
        body["time"] = time.time()
        self.run_dir.status.mkdir(parents=True, exist_ok=True)
        write_atomically(self.run_dir.status / f"rank-{self.rank:05d}.json", json.dumps(body) + "\n", durable=False)
        self._written = time.monotonic()
