# SPDX-License-Identifier: Apache-2.0
"""Seconds in collectives: this rank's communication, most of it a wait for slower ranks.

`patches/timed_collectives.py` hands it DeepSpeed's collectives, `distributed.py` the loop's own. A
CPU is timed by the host's clock, since a collective blocks there. A device is timed by two events on the calling
stream, read when the device has passed them; a collective that overlaps with computation counts there too.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from deepspeed.accelerator import get_accelerator

LOOP_SPAN = "loop"
"""The span of a step outside the stepper's spans."""
SecondsBySpan = defaultdict[str, float]
"""By the name of a span."""
Mark = Any
"""A point in time: seconds of the host's clock on a CPU, else an event on the device. Only a timer looks into it."""
Span = tuple[str, Mark, Mark]
"""The name of a span, and its two marks."""


class CommTimer:
    """Counts while it is `enabled`. `current_span` is the running span of the step; seconds are counted by span."""

    def __init__(self) -> None:
        self.enabled, self.current_span = False, LOOP_SPAN
        self.host_seconds: SecondsBySpan = defaultdict(float)
        """Seconds by the host's clock of collectives that block it: all on a CPU, the loop's own on a device."""
        self.device_spans: list[Span] = []
        """(span, event before, event after) of a device's collectives."""
        self._is_nested = False
        self._use_events = get_accelerator().device_name() != "cpu"

    def pop_times(self) -> tuple[SecondsBySpan, list[Span]]:
        """The counts since the last call."""
        times = self.host_seconds, self.device_spans
        self.host_seconds, self.device_spans = defaultdict(float), []
        return times

    @contextmanager
    def host_wait(self) -> Iterator[None]:
        """In this context the host waits for other ranks. A save in the background does not count."""
        if not self.enabled or self._is_nested or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._is_nested, start = True, time.perf_counter()
        try:
            yield
        finally:
            self._is_nested = False
            self.host_seconds[self.current_span] += time.perf_counter() - start

    def time_call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a collective and count it; an asynchronous one is counted again when its handle is waited for."""
        if not self.enabled or self._is_nested:
            return function(*args, **kwargs)
        self._is_nested, start = True, self._mark()
        try:
            result = function(*args, **kwargs)
        finally:
            self._is_nested = False
            self._add_span(start)
        return _TimedHandle(result, self) if hasattr(result, "wait") else result

    def _mark(self) -> Mark:
        if not self._use_events:
            return time.perf_counter()
        event = get_accelerator().Event(enable_timing=True)
        event.record()
        return event

    def _add_span(self, start: Mark) -> None:
        if self._use_events:
            self.device_spans.append((self.current_span, start, self._mark()))
        else:
            self.host_seconds[self.current_span] += time.perf_counter() - start


class _TimedHandle:
    """An asynchronous collective. `wait` is counted; all else is the handle's own."""

    def __init__(self, handle: Any, timer: CommTimer) -> None:
        self._handle, self._timer = handle, timer

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        return self._timer.time_call(self._handle.wait, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


COMM_TIMER = CommTimer()
"""One for the process, as DeepSpeed has one communication backend for it."""
