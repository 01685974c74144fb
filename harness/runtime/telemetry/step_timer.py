"""The clock of a step: where it begins and ends and what its parts take. Never makes the host wait for the device.

On a CPU by the host's clock. On a device by events that it passes, which are read one step later.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from deepspeed.accelerator import get_accelerator

from harness.runtime.telemetry.comm_timer import COMM_TIMER, LOOP_SPAN, SecondsBySpan

Span = tuple[str, Any, Any]
"""The name of a part, and its two edges."""


class _SpanContext:
    """What happens inside is one part of the step. A class of its own, since a generator takes twice as long."""

    __slots__ = ("_name", "_start", "_timer")

    def __init__(self, watch: StepTimer, name: str) -> None:
        self._timer, self._name = watch, name

    def __enter__(self) -> None:
        COMM_TIMER.current_span, self._start = self._name, self._timer.mark()

    def __exit__(self, *_: object) -> None:
        self._timer.add_span(self._name, self._start, self._timer.mark())
        COMM_TIMER.current_span = LOOP_SPAN


class StepTimer:
    """Notes the parts of a step as it goes on."""

    def __init__(self) -> None:
        self._accelerator = get_accelerator()
        self.on_device = self._accelerator.device_name() != "cpu"
        self._spans: list[Span] = []

    def span(self, name: str) -> _SpanContext:
        """Count the time inside under this name: `with watch.part("forward"): ...`."""
        return _SpanContext(self, name)

    def add_span(self, name: str, start: Any, end: Any) -> None:
        """A part of this step has gone on between these edges."""
        self._spans.append((name, start, end))

    def mark(self) -> Any:
        """A point in time."""
        if not self.on_device:
            return time.perf_counter()
        event = self._accelerator.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds from one edge to another, which the device has passed."""
        return float(start.elapsed_time(end) / 1000 if self.on_device else end - start)

    def wait_for(self, mark: Any) -> None:
        """Until the device has passed it."""
        if self.on_device:
            mark.synchronize()

    def pop_spans(self) -> list[Span]:
        """Parts since the last time."""
        taken, self._spans = self._spans, []
        return taken


@dataclass(slots=True)
class StepTrace:
    """A step that the device may not have passed yet: edges, and what the host knows already."""

    step: int
    start_mark: Any
    end_mark: Any
    pause_seconds: float
    """Seconds between the edges that went to saves and evaluations."""
    spans: list[Span]
    host_comm_seconds: SecondsBySpan
    comm_spans: list[Span]
    comm_measured: bool
    """Were collectives timed in this step?"""
    io_seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(slots=True)
class StepTimes:
    """Seconds of one step: all of it, its parts, and what of them was spent in collectives, by part."""

    seconds: float
    span_seconds: SecondsBySpan
    comm_seconds: SecondsBySpan

    @property
    def loop_seconds(self) -> float:
        """What no part has."""
        return max(0.0, self.seconds - sum(self.span_seconds.values()))


def compute_step_times(raw: StepTrace, watch: StepTimer) -> StepTimes:
    """Of a step that the device has passed.

    On a device the loop's own collectives block the host; they leave the device idle for as long as the loop's part of
    the step at most.
    """
    parts: SecondsBySpan = defaultdict(float)
    for name, start, end in raw.spans:
        parts[name] += watch.seconds_between(start, end)
    found = StepTimes(
        max(0.0, watch.seconds_between(raw.start_mark, raw.end_mark) - raw.pause_seconds),
        parts,
        raw.host_comm_seconds.copy(),
    )
    if watch.on_device:
        found.comm_seconds[LOOP_SPAN] = min(found.comm_seconds[LOOP_SPAN], found.loop_seconds)
        for name, start, end in raw.comm_spans:
            found.comm_seconds[name] += watch.seconds_between(start, end)
    return found
