# SPDX-License-Identifier: Apache-2.0
"""The trackers of a run, one thread each, which imports, opens and feeds its tracker.

A tracker that is missing, fails or hangs is disabled and reported. Training neither stops nor waits for it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness.hostinfo.training_packages import install_command
from harness.runtime.metrics import MetricsWriter
from harness.runtime.telemetry.trackers.tracker_backend import (
    CsvBackend,
    MlflowBackend,
    TensorBoardBackend,
    TrackerBackend,
    TrackerTarget,
    WandbBackend,
)
from harness.spec.sections.telemetry_spec import TelemetrySpec, Tracker
from harness.training_lineage import find_first_run, read_training_part

BACKENDS: Mapping[Tracker, Callable[[TrackerTarget], TrackerBackend]] = {
    "csv": CsvBackend,
    "tensorboard": TensorBoardBackend,
    "wandb": WandbBackend,
    "mlflow": MlflowBackend,
}

_MAX_QUEUED_LINES = 1000
"""Lines that may wait for a slow tracker. One more line disables it."""
_CLOSE_TIMEOUT_SECONDS = 15.0


@dataclass(slots=True)
class TrackerThread:
    """One tracker and its thread."""

    name: str
    open_backend: Callable[[], TrackerBackend]
    error: str | None = None
    is_reported: bool = False
    _lines: queue.Queue[Mapping[str, Any] | None] = field(default_factory=lambda: queue.Queue(_MAX_QUEUED_LINES))
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"tracker-{self.name}", daemon=True)
        self._thread.start()

    def enqueue(self, line: Mapping[str, Any]) -> None:
        """Queue a line. Never blocks."""
        if self.error is not None:
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.error = f"{_MAX_QUEUED_LINES} lines are waiting for it"

    def close(self, seconds: float = _CLOSE_TIMEOUT_SECONDS) -> None:
        """Log the queued lines, for `seconds` at most."""
        if self._thread is None or self.error is not None:
            return
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(seconds)
        if self._thread.is_alive() and self.error is None:
            self.error = f"it was not done after {seconds:.0f} s"

    def _run(self) -> None:
        try:
            backend = self.open_backend()
            while (line := self._lines.get()) is not None:
                backend.log(line)
            backend.close()
        except BaseException as error:  # whatever a library raises, SystemExit too: training continues
            self.error = _describe_error(error)


def _describe_error(error: BaseException) -> str:
    """The first line of the message, and for a library that is missing the command that installs it."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"{text}; {install_command('trackers')}" if isinstance(error, ImportError) else text


class Trackers:
    """All trackers of a run. Only the main process has any. They get every row of `metrics`, and end with it."""

    def __init__(
        self, spec: TelemetrySpec, run_dir: Path, name: str, metrics: MetricsWriter, log: Callable[[str], None]
    ) -> None:
        self._metrics, self._log, self._last_step = metrics, log, 0
        folder = Path(spec.tracker_dir) if spec.tracker_dir else find_first_run(run_dir) / "trackers"
        target = TrackerTarget(spec, folder, read_training_part(run_dir).training, name)
        kinds = dict.fromkeys(spec.trackers) if metrics.is_writer else {}
        self.threads = [TrackerThread(kind, partial(BACKENDS[kind], target)) for kind in kinds]

    def start(self) -> None:
        """Start all of them."""
        for tracker in self.threads:
            tracker.start()
        self._metrics.listener = self if self.threads else None

    def enqueue(self, row: Mapping[str, Any]) -> None:
        """Queue a row for each tracker."""
        if row["type"] == "step":
            self._last_step = row["step"]
        for tracker in self.threads:
            tracker.enqueue(row)

    def report_failures(self, step: int) -> None:
        """Report the trackers that were disabled since the last call."""
        for tracker in self.threads:
            if tracker.error is not None and not tracker.is_reported:
                tracker.is_reported = True
                self._metrics.write("tracker_failed", step=step, tracker=tracker.name, error=tracker.error)
                self._log(f"warning: the tracker `{tracker.name}` is disabled, training continues: {tracker.error}")

    def close(self) -> None:
        """Close all trackers and report the failures."""
        for tracker in self.threads:
            tracker.close()
        self.report_failures(self._last_step)
