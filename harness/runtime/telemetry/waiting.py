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

_METHODS = (
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
LOOP = "loop"
"""The part of a step that is none of the stepper's."""
Seconds = defaultdict[str, float]
"""By the name of a part."""


class Meter:
    """Counts while it is `on`. `part` is the part of the step that goes on; seconds are kept apart by it."""

    def __init__(self) -> None:
        self.on, self.part = False, LOOP
        self.host: Seconds = defaultdict(float)
        """Seconds by the host's clock, of what blocks it: all collectives on a CPU, the loop's own on a device."""
        self.edges: list[tuple[str, Any, Any]] = []
        """(part, event before, event after) of a device's collectives."""
        self._inside = False
        self._events = get_accelerator().device_name() != "cpu"

    def take(self) -> tuple[Seconds, list[tuple[str, Any, Any]]]:
        """What was counted since the last time."""
        taken = self.host, self.edges
        self.host, self.edges = defaultdict(float), []
        return taken

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What happens inside blocks the host until others have come as far. A save in the background is left out."""
        if not self.on or self._inside or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._inside, began = True, time.perf_counter()
        try:
            yield
        finally:
            self._inside = False
            self.host[self.part] += time.perf_counter() - began

    def call(self, function: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """Call a collective and count it; what it leaves to wait for is counted when somebody waits."""
        if not self.on or self._inside:
            return function(*args, **kw)
        self._inside, begin = True, self._edge()
        try:
            result = function(*args, **kw)
        finally:
            self._inside = False
            self._count(begin)
        return _Handle(result, self) if hasattr(result, "wait") else result

    def _edge(self) -> Any:
        if not self._events:
            return time.perf_counter()
        event = get_accelerator().Event(enable_timing=True)
        event.record()
        return event

    def _count(self, begin: Any) -> None:
        if self._events:
            self.edges.append((self.part, begin, self._edge()))
        else:
            self.host[self.part] += time.perf_counter() - begin


class _Handle:
    """A collective on its way. Waiting for it is counted; all else is the handle's own."""

    def __init__(self, handle: Any, meter: Meter) -> None:
        self._handle, self._meter = handle, meter

    def wait(self, *args: Any, **kw: Any) -> Any:
        return self._meter.call(self._handle.wait, *args, **kw)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


METER = Meter()
"""Of this process: DeepSpeed has one communication backend a process too."""


def watch_collectives() -> None:
    """Time DeepSpeed's collectives from now on, where the meter is on. Does nothing the second time."""
    from deepspeed.comm import comm

    backend = comm.cdb
    for name in _METHODS:
        function = getattr(backend, name, None)
        if function is not None and not hasattr(function, "timed_by_harness"):
            setattr(backend, name, _timed(function))


def _timed(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*args: Any, **kw: Any) -> Any:
        if torch.compiler.is_compiling():  # a graph gets the collective itself, and no clock
            return function(*args, **kw)
        return METER.call(function, *args, **kw)

    timed.timed_by_harness = True  # type: ignore[attr-defined]
    return timed
