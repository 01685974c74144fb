"""Seconds in collectives: how long this rank communicates and, most of it where ranks differ, waits for others.

DeepSpeed's collectives all go through one object, whose methods are timed; the loop's own are timed in `ranks.py`. On
a CPU the host's clock says it, since there a collective blocks. On a device two events on the stream that calls it do,
read when the device has passed them; a collective beside the computation counts there too.
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
"""The part of a step that is none of the stepper's."""
SecondsBySpan = defaultdict[str, float]
"""By the name of a part."""


class CommTimer:
    """Counts while it is `on`. `part` is the part of the step that goes on; seconds are kept apart by it."""

    def __init__(self) -> None:
        self.enabled, self.current_span = False, LOOP_SPAN
        self.host_seconds: SecondsBySpan = defaultdict(float)
        """Seconds by the host's clock, of what blocks it: all collectives on a CPU, the loop's own on a device."""
        self.device_spans: list[tuple[str, Any, Any]] = []
        """(part, event before, event after) of a device's collectives."""
        self._is_nested = False
        self._use_events = get_accelerator().device_name() != "cpu"

    def pop_times(self) -> tuple[SecondsBySpan, list[tuple[str, Any, Any]]]:
        """What was counted since the last time."""
        taken = self.host_seconds, self.device_spans
        self.host_seconds, self.device_spans = defaultdict(float), []
        return taken

    @contextmanager
    def host_wait(self) -> Iterator[None]:
        """What happens inside blocks the host until others have come as far. A save in the background is left out."""
        if not self.enabled or self._is_nested or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._is_nested, began = True, time.perf_counter()
        try:
            yield
        finally:
            self._is_nested = False
            self.host_seconds[self.current_span] += time.perf_counter() - began

    def time_call(self, function: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """Call a collective and count it; what it leaves to wait for is counted when somebody waits."""
        if not self.enabled or self._is_nested:
            return function(*args, **kw)
        self._is_nested, begin = True, self._mark()
        try:
            result = function(*args, **kw)
        finally:
            self._is_nested = False
            self._add_span(begin)
        return _TimedHandle(result, self) if hasattr(result, "wait") else result

    def _mark(self) -> Any:
        if not self._use_events:
            return time.perf_counter()
        event = get_accelerator().Event(enable_timing=True)
        event.record()
        return event

    def _add_span(self, begin: Any) -> None:
        if self._use_events:
            self.device_spans.append((self.current_span, begin, self._mark()))
        else:
            self.host_seconds[self.current_span] += time.perf_counter() - begin


class _TimedHandle:
    """A collective on its way. Waiting for it is counted; all else is the handle's own."""

    def __init__(self, handle: Any, meter: CommTimer) -> None:
        self._handle, self._timer = handle, meter

    def wait(self, *args: Any, **kw: Any) -> Any:
        return self._timer.time_call(self._handle.wait, *args, **kw)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


COMM_TIMER = CommTimer()
"""Of this process: DeepSpeed has one communication backend a process too."""


def instrument_collectives() -> None:
    """Time DeepSpeed's collectives from now on, where the meter is on. Does nothing the second time."""
    from deepspeed.comm import comm

    backend = comm.cdb
    for name in _COLLECTIVES:
        function = getattr(backend, name, None)
        if function is not None and not hasattr(function, "timed_by_harness"):
            setattr(backend, name, _with_timing(function))


def _with_timing(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*args: Any, **kw: Any) -> Any:
        if torch.compiler.is_compiling():  # a graph gets the collective itself, and no clock
            return function(*args, **kw)
        return COMM_TIMER.time_call(function, *args, **kw)

    timed.timed_by_harness = True  # type: ignore[attr-defined]
    return timed
