# SPDX-License-Identifier: Apache-2.0
"""Streams and events of the simulated device. They carry no work: they hand each ordering to the observers."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from harness.runtime.simulation.device_events import DEFAULT_STREAM, HOST, DeviceObserver

OBSERVERS: list[DeviceObserver] = []
"""All that look on, in the order in which they are called."""
_stream_numbers = itertools.count(1)
_event_numbers = itertools.count(1)
_current = threading.local()


class SimulatedStream:
    """`torch.cuda.Stream`: a name, and a context in which it is the current stream."""

    def __init__(self, *_: Any, name: str = "", **options: Any) -> None:
        self.priority = options.get("priority", 0)
        self.name = name or f"stream {next(_stream_numbers)}"
        self.cuda_stream = self.stream_id = 0
        for observer in OBSERVERS:
            observer.on_new_stream(self.name)

    def synchronize(self) -> None:
        """The host waits for the stream."""
        for observer in OBSERVERS:
            observer.on_host_wait(self.name)

    def wait_stream(self, stream: SimulatedStream) -> None:
        """Later work of this stream waits for the work that the other has been given."""
        for observer in OBSERVERS:
            observer.on_stream_wait(self.name, stream.name)

    def wait_event(self, event: SimulatedEvent) -> None:
        """Later work of this stream waits for the event."""
        event.wait(self)

    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        """An event at this point of the stream."""
        event = event or SimulatedEvent()
        event.record(self)
        return event

    def query(self) -> bool:
        """Is all work of the stream done? True also counts as a wait for it; without a clock it is always True."""
        if any(observer.is_stream_pending(self.name) for observer in OBSERVERS):
            return False
        self.synchronize()
        return True

    def __enter__(self) -> SimulatedStream:
        _stack().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _stack().pop()


class SimulatedEvent:
    """`torch.cuda.Event`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(_event_numbers)

    def record(self, stream: SimulatedStream | None = None) -> None:
        """Mark this point of a stream, of the current one by default."""
        for observer in OBSERVERS:
            observer.on_event_record(self.number, (stream or current_stream()).name)

    def wait(self, stream: SimulatedStream | None = None) -> None:
        """Make a stream wait, the current one by default."""
        for observer in OBSERVERS:
            observer.on_event_wait(self.number, (stream or current_stream()).name)

    def synchronize(self) -> None:
        """The host waits for the event."""
        for observer in OBSERVERS:
            observer.on_event_wait(self.number, HOST)

    def query(self) -> bool:
        """Has the event happened? True also counts as a wait for it; without a clock it is always True."""
        if any(observer.is_event_pending(self.number) for observer in OBSERVERS):
            return False
        self.synchronize()
        return True

    def elapsed_time(self, other: SimulatedEvent) -> float:  # noqa: ARG002
        """Milliseconds to another event: no clock is behind them."""
        return 1.0


DEFAULT = SimulatedStream(name=DEFAULT_STREAM)


def current_stream() -> SimulatedStream:
    """The innermost stream whose context this thread is in."""
    return _stack()[-1]


def _stack() -> list[SimulatedStream]:
    if not hasattr(_current, "stack"):
        _current.stack = [DEFAULT]
    stack: list[SimulatedStream] = _current.stack
    return stack
