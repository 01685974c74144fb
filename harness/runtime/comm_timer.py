# SPDX-License-Identifier: Apache-2.0
"""Seconds in collectives: this rank's communication, most of it a wait for slower ranks.

DeepSpeed's collectives all go through one object, whose methods are timed; `distributed.py` times the loop's own. A
CPU is timed by the host's clock, since a collective blocks there. A device is timed by two events on the calling
stream, read when the device has passed them; a collective that overlaps with computation counts there too.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator

_COLLECTIVES = (
    "all_gather",
    "all_gather_base",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "inference_all_reduce",
    "irecv",
    "isend",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)
LOOP_SPAN = "loop"
"""The span of a step outside the stepper's spans."""
SecondsBySpan = defaultdict[str, float]
"""By the name of a span."""


class CommTimer:
    """Counts while it is `enabled`. `current_span` is the running span of the step; seconds are counted by span."""

    def __init__(self) -> None:
        self.enabled, self.current_span = False, LOOP_SPAN
        self.host_seconds: SecondsBySpan = defaultdict(float)
        """Seconds by the host's clock of collectives that block it: all on a CPU, the loop's own on a device."""
        self.device_spans: list[tuple[str, Any, Any]] = []
        """(span, event before, event after) of a device's collectives."""
        self._is_nested = False
        self._use_events = get_accelerator().device_name() != "cpu"

    def pop_times(self) -> tuple[SecondsBySpan, list[tuple[str, Any, Any]]]:
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

    def _mark(self) -> Any:
        if not self._use_events:
            return time.perf_counter()
        event = get_accelerator().Event(enable_timing=True)
        event.record()
        return event

    def _add_span(self, start: Any) -> None:
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


def instrument_collectives() -> None:
    """Time DeepSpeed's collectives from now on, while the timer is enabled. A second call does nothing."""
    from deepspeed.comm import comm

    backend = comm.cdb
    for name in _COLLECTIVES:
        function = getattr(backend, name, None)
        if function is not None and not hasattr(function, "timed_by_harness"):
            setattr(backend, name, _with_timing(function))


def _with_timing(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a graph gets the collective itself, without a timer
            return function(*args, **kwargs)
        return COMM_TIMER.time_call(function, *args, **kwargs)

    timed.timed_by_harness = True  # type: ignore[attr-defined]
    return timed
