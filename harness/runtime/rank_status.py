# SPDX-License-Identifier: Apache-2.0
"""The status of each rank, in `status/rank-NNNNN.json`: from these files the supervisor decides how a run ended, and
from their age that it hangs. Where the disk does not take the file, the status is a line of the rank's output.

Progress for people is in `progress_display.py`, numbers for programs in `metrics.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.file_io import replace_file
from harness.progress import RANK_STATUS
from harness.runtime.run_config import RunDir
from harness.secret_text import hide_passwords_in

RankState = Literal["starting", "running", "completed", "stopped", "failed"]
Phase = Literal["start", "data", "step", "save", "eval", "upload", "end"]
_WRITE_INTERVAL_SECONDS = 1.0
_LINE_INTERVAL_SECONDS = 5.0
"""Between two statuses as lines of output, unless the state or the phase changes."""
_SUPERVISOR_VARIABLE = "HARNESS_SUPERVISOR"
_MAX_WRITES_PER_SECOND = 1024
"""The limit for all ranks together, which replace files on one file system."""


def write_interval(world_size: int) -> float:
    """Seconds between two writes of a rank that makes progress: more with many thousand ranks."""
    return max(_WRITE_INTERVAL_SECONDS, world_size / _MAX_WRITES_PER_SECOND)


@dataclass(slots=True)
class RankStatusWriter:
    """Writes this rank's file: at most every `interval_seconds` while the rank makes progress, and at once when the
    state or the phase changes. Where the interval is longer than a second, the last progress is written after it even
    if there is no more, so that a rank that hangs is seen at its last step.
    """

    run_dir: RunDir
    rank: int
    state: RankState = "starting"
    step: int = 0
    checkpoint: str | None = None
    phase: Phase = "start"
    activity: str = ""
    """Its phase before its first step, of `harness.progress.START_UP`."""
    outcome: RankState | None = None
    """The end of training, from its last step on: what follows may still be interrupted."""
    not_uploaded: str = ""
    """Why the newest checkpoint is not in the object store, from the end of training on."""
    upload_command: str = ""
    """The command that uploads it later."""
    on_progress: Callable[[Phase], None] | None = None
    """Called whenever this rank makes progress: the watchdog."""
    interval_seconds: float = _WRITE_INTERVAL_SECONDS
    _written_at: float = field(default=0.0)
    _said_at: float = field(default=0.0)
    _is_pending: bool = False
    """There was progress since the last write."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def update(
        self,
        state: RankState,
        *,
        step: int | None = None,
        error: str | None = None,
        checkpoint: str | None = None,
        is_user_error: bool = False,
    ) -> None:
        """Set the state. `error` is for `failed`, with `is_user_error` when it is a finding about the user's input;
        `checkpoint` names the last complete one.
        """
        changed = state != self.state or error is not None or checkpoint is not None
        if state == "running" and self.state != "running":
            self.phase = "step"
        self.state = state
        self.step = self.step if step is None else step
        self.checkpoint = checkpoint or self.checkpoint
        self._record_progress(changed, error=error, is_user_error=is_user_error)

    def set_activity(self, activity: str) -> None:
        """Say what this rank does from now on; for people who wait for the first step."""
        self.activity = activity
        self._record_progress(True)

    def heartbeat(self) -> None:
        """Progress other than a step, such as a batch of an evaluation."""
        self._record_progress(False)

    @contextmanager
    def enter_phase(self, phase: Phase) -> Iterator[None]:
        """In this context the rank is in `phase`, which has a time limit of its own."""
        before, self.phase = self.phase, phase
        self._record_progress(True)
        yield
        self.phase = before
        self._record_progress(True)

    def _record_progress(self, immediately: bool, *, error: str | None = None, is_user_error: bool = False) -> None:
        if self.on_progress is not None:
            self.on_progress(self.phase)
        with self._lock:
            if immediately or time.monotonic() - self._written_at >= self.interval_seconds:
                self._write(error, is_user_error, immediately=immediately)
            else:
                self._is_pending = True
        if self._thread is None and self.interval_seconds > _WRITE_INTERVAL_SECONDS:
            self._thread = threading.Thread(target=self._write_pending, name="status-writer", daemon=True)
            self._thread.start()

    def _write_pending(self) -> None:
        while True:
            time.sleep(self.interval_seconds)
            with self._lock:
                if self._is_pending and self.state == "running":
                    self._write(None, False, immediately=False)

    def _write(self, error: str | None, is_user_error: bool, *, immediately: bool) -> None:
        """Never raises OSError: a status ends no training."""
        body: dict[str, Any] = {
            "rank": self.rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "state": self.state,
            "phase": self.phase,
            "step": self.step,
        }
        if self.activity:
            body["activity"] = self.activity
        if error is not None:
            body |= {"error": error, "refused": is_user_error}
        if self.checkpoint is not None:
            body["checkpoint"] = self.checkpoint
        if self.outcome is not None:
            body["outcome"] = self.outcome
        if self.not_uploaded:
            body |= {"not_uploaded": self.not_uploaded, "upload_command": self.upload_command}
        body["time"] = time.time()
        text, now = json.dumps(hide_passwords_in(body)), time.monotonic()
        self._written_at = now
        try:
            self.run_dir.status.mkdir(parents=True, exist_ok=True)
            replace_file(self.run_dir.status / f"rank-{self.rank:05d}.json", text + "\n", durable=False)
            self._is_pending = False
        except OSError:
            self._is_pending = True
            if immediately or now - self._said_at >= _LINE_INTERVAL_SECONDS:
                self._said_at = now
                _say(text)


def _say(text: str) -> None:
    """To the supervisor, in a line of output; a rank that was started by hand has none."""
    if _SUPERVISOR_VARIABLE in os.environ:
        with contextlib.suppress(OSError):
            print(RANK_STATUS + text, flush=True)  # noqa: T201
