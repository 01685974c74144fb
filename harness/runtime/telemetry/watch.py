"""The clock of a step: where it begins and ends and what its parts take. Never makes the host wait for the device.

On a CPU by the host's clock. On a device by events that it passes, which are read one step later.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from deepspeed.accelerator import get_accelerator

from harness.runtime.telemetry.waiting import LOOP, METER, Seconds

Span = tuple[str, Any, Any]
"""The name of a part, and its two edges."""


class _Part:
    """What happens inside is one part of the step. A class of its own, since a generator takes twice as long."""

    __slots__ = ("_name", "_start", "_watch")

    def __init__(self, watch: Stopwatch, name: str) -> None:
        self._watch, self._name = watch, name

    def __enter__(self) -> None:
        METER.part, self._start = self._name, self._watch.edge()

    def __exit__(self, *_: object) -> None:
        self._watch.note(self._name, self._start, self._watch.edge())
        METER.part = LOOP


class Stopwatch:
    """Notes the parts of a step as it goes on."""

    def __init__(self) -> None:
        self._accelerator = get_accelerator()
        self.on_device = self._accelerator.device_name() != "cpu"
        self._spans: list[Span] = []

    def part(self, name: str) -> _Part:
        """Count the time inside under this name: `with watch.part("forward"): ...`."""
        return _Part(self, name)

    def note(self, name: str, start: Any, end: Any) -> None:
        """A part of this step has gone on between these edges."""
        self._spans.append((name, start, end))

    def edge(self) -> Any:
        """A point in time."""
        if not self.on_device:
            return time.perf_counter()
        event = self._accelerator.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Seconds from one edge to another, which the device has passed."""
        return float(start.elapsed_time(end) / 1000 if self.on_device else end - start)

    def wait_for(self, edge: Any) -> None:
        """Until the device has passed it."""
        if self.on_device:
            edge.synchronize()

    def take(self) -> list[Span]:
        """Parts since the last time."""
        taken, self._spans = self._spans, []
        return taken


@dataclass(slots=True)
class Raw:
    """A step that the device may not have passed yet: edges, and what the host knows already."""

    step: int
    start: Any
    end: Any
    paused: float
    """Seconds between the edges that went to saves and evaluations."""
    spans: list[Span]
    waited: Seconds
    waits: list[Span]
    measured: bool
    """Were collectives timed in this step?"""
    io: float = 0.0
    read: int = 0
    written: int = 0


@dataclass(slots=True)
class Figures:
    """Seconds of one step: all of it, its parts, and what of them was spent in collectives, by part."""

    seconds: float
    parts: Seconds
    communication: Seconds

    @property
    def loop(self) -> float:
        """What no part has."""
        return max(0.0, self.seconds - sum(self.parts.values()))


def figures(raw: Raw, watch: Stopwatch) -> Figures:
    """Of a step that the device has passed.

    On a device the loop's own collectives block the host; they leave the device idle for as long as the loop's part of
    the step at most.
    """
    parts: Seconds = defaultdict(float)
    for name, start, end in raw.spans:
        parts[name] += watch.between(start, end)
    found = Figures(max(0.0, watch.between(raw.start, raw.end) - raw.paused), parts, raw.waited.copy())
    if watch.on_device:
        found.communication[LOOP] = min(found.communication[LOOP], found.loop)
        for name, start, end in raw.waits:
            found.communication[name] += watch.between(start, end)
    return found
