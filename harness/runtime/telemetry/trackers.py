"""Lines of metrics.jsonl to other programs: CSV, TensorBoard, Weights & Biases, MLflow, through their own libraries.

Each has a thread of its own, which also imports and opens it: a tracker that is missing, fails, or hangs is given up
and told, and training neither stops nor waits for it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.runtime.metrics import MetricsWriter
from harness.runtime.telemetry.tracker_backends import BACKENDS, TrackerBackend, TrackerTarget
from harness.spec.sections.telemetry_spec import TelemetrySpec

_MAX_QUEUED_LINES = 1000
"""Lines that may wait for a slow tracker; beyond, it is given up."""
_CLOSE_TIMEOUT_SECONDS = 15.0


@dataclass(slots=True)
class TrackerThread:
    """One of them, at work in its thread."""

    name: str
    open_backend: Callable[[], TrackerBackend]
    error: str | None = None
    is_reported: bool = False
    _lines: queue.Queue[Mapping[str, Any] | None] = field(default_factory=lambda: queue.Queue(_MAX_QUEUED_LINES))
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to take lines."""
        self._thread = threading.Thread(target=self._run, name=f"tracker-{self.name}", daemon=True)
        self._thread.start()

    def enqueue(self, line: Mapping[str, Any]) -> None:
        """Hand a line over; returns at once."""
        if self.error is not None:
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.error = f"{_MAX_QUEUED_LINES} lines wait for it"

    def close(self, seconds: float = _CLOSE_TIMEOUT_SECONDS) -> None:
        """Let it take what waits, for so long at most."""
        if self._thread is None or self.error is not None:
            return
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(seconds)
        if self._thread.is_alive() and self.error is None:
            self.error = f"it was not done after {seconds:.0f} s"

    def _run(self) -> None:
        try:
            sink = self.open_backend()
            while (line := self._lines.get()) is not None:
                sink.log(line)
            sink.close()
        except BaseException as error:  # whatever a library raises, an exit of its own too: training goes on
            self.error = _describe_error(error)


def _describe_error(error: BaseException) -> str:
    """The first line of it, and for a library that is not there how to get it."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"{text}; `pip install deepspeed-harness[trackers]`" if isinstance(error, ImportError) else text


class Trackers:
    """All of a run; on ranks other than 0 there are none."""

    def __init__(
        self, spec: TelemetrySpec, run_dir: Path, name: str, metrics: MetricsWriter, say: Callable[[str], None]
    ) -> None:
        self._metrics, self._log = metrics, say
        folder = Path(spec.tracker_dir) if spec.tracker_dir else run_dir / "trackers"
        target = TrackerTarget(spec, folder, run_dir.name, name)
        kinds = dict.fromkeys(spec.trackers) if metrics.is_writer else {}
        self.threads = [TrackerThread(kind, lambda kind=kind: BACKENDS[kind](target)) for kind in kinds]
        for tracker in self.threads:
            tracker.start()
            metrics.listeners.append(tracker.enqueue)

    def report_failures(self, step: int) -> None:
        """Say which have been given up since the last time."""
        for tracker in self.threads:
            if tracker.error is not None and not tracker.is_reported:
                tracker.is_reported = True
                self._metrics.write("tracker_failed", step=step, tracker=tracker.name, error=tracker.error)
                self._log(f"warning: the tracker `{tracker.name}` is given up, training goes on: {tracker.error}")

    def close(self, step: int) -> None:
        """Let all of them end, and tell what went wrong."""
        for tracker in self.threads:
            tracker.close()
        self.report_failures(step)
