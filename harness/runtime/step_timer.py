# SPDX-License-Identifier: Apache-2.0
"""The timer of a step and of its spans. Never makes the host wait for the device.

On a CPU it reads the host's clock. On a device it records events, which are read one step later.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

from deepspeed.accelerator import get_accelerator

from harness.runtime.comm_timer import COMM_TIMER, LOOP_SPAN, Mark, SecondsBySpan, Span


class _SpanContext:
    """A context that is one span of the step. A class, since a generator takes twice as long."""

    __slots__ = ("_name", "_start", "_timer")

    def __init__(self, timer: StepTimer, name: str) -> None:
        self._timer, self._name = timer, name

    def __enter__(self) -> None:
        COMM_TIMER.current_span, self._start = self._name, self._timer.mark()

    def __exit__(self, *_: object) -> None:
        self._timer.add_span(self._name, self._start, self._timer.mark())
        COMM_TIMER.current_span = LOOP_SPAN


class StepTimer:
    """Records the spans of a step while it runs."""

    def __init__(self) -> None:
        self._accelerator = get_accelerator()
        self.on_device = self._accelerator.device_name() != "cpu"
        self._spans: list[Span] = []

    def span(self, name: str) -> _SpanContext:
        """Time a span under this name: `with timer.span("forward"): ...`."""
        return _SpanContext(self, name)

    def add_span(self, name: str, start: Mark, end: Mark) -> None:
        """Add a span of this step, between two marks."""
        self._spans.append((name, start, end))

    def mark(self) -> Mark:
        """A point in time."""
        if not self.on_device:
            return time.perf_counter()
        event = self._accelerator.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: Mark, end: Mark) -> float:
        """Seconds between two marks, which the device has passed."""
        return float(start.elapsed_time(end) / 1000 if self.on_device else end - start)

    def wait_for(self, mark: Mark) -> None:
        """Wait until the device has passed it."""
        if self.on_device:
            mark.synchronize()

    def pop_spans(self) -> list[Span]:
        """The spans since the last call."""
        spans, self._spans = self._spans, []
        return spans


@dataclass(slots=True)
class StepTrace:
    """A step that the device may not have passed yet: its marks, and the host's measurements."""

    step: int
    start_mark: Mark
    end_mark: Mark
    pause_seconds: float
    """Seconds of saves and evaluations between the two marks."""
    spans: list[Span]
    host_comm_seconds: SecondsBySpan
    comm_spans: list[Span]
    comm_measured: bool
    """True when collectives were timed in this step."""
    io_seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(slots=True)
class StepTimes:
    """Seconds of one step: in all, by span, and in collectives by span."""

    seconds: float
    span_seconds: SecondsBySpan
    comm_seconds: SecondsBySpan

    @property
    def loop_seconds(self) -> float:
        """Seconds outside all spans."""
        return max(0.0, self.seconds - sum(self.span_seconds.values()))


def compute_step_times(trace: StepTrace, timer: StepTimer) -> StepTimes:
    """The times of a step that the device has passed.

    On a device the loop's own collectives block the host; they leave the device idle for at most as long as the time
    outside all spans.
    """
    span_seconds: SecondsBySpan = defaultdict(float)
    for name, start, end in trace.spans:
        span_seconds[name] += timer.seconds_between(start, end)
    times = StepTimes(
        max(0.0, timer.seconds_between(trace.start_mark, trace.end_mark) - trace.pause_seconds),
        span_seconds,
        trace.host_comm_seconds.copy(),
    )
    if timer.on_device:
        times.comm_seconds[LOOP_SPAN] = min(times.comm_seconds[LOOP_SPAN], times.loop_seconds)
        for name, start, end in trace.comm_spans:
            times.comm_seconds[name] += timer.seconds_between(start, end)
    return times
