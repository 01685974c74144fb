# SPDX-License-Identifier: Apache-2.0
"""The thread that steps sub-groups beside the backward pass (`patches/overlapped_step.py`), as a stream: fake tensors
belong to one thread.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.runtime.simulation.device_events import STEP_THREAD
from harness.runtime.simulation.memory_tracker import MemoryTracker
from harness.runtime.simulation.streams import OBSERVERS, SimulatedEvent, SimulatedStream


class _Work:
    """A `Future` of work between two events."""

    def __init__(self, begun: SimulatedEvent, done: SimulatedEvent) -> None:
        self._begun, self._done = begun, done

    def cancel(self) -> bool:
        """By a clock it may not have begun; without one it has."""
        is_cancelled = any(observer.is_event_pending(self._begun.number) for observer in OBSERVERS)
        for observer in OBSERVERS if is_cancelled else ():
            observer.on_work_cancelled(self._begun.number, STEP_THREAD)
        return is_cancelled

    def result(self) -> None:
        """The host waits."""
        self._done.synchronize()


class SimulatedThread:
    """`StepThread`: the host goes on while it works."""

    def __init__(self) -> None:
        self._stream = SimulatedStream(name=STEP_THREAD)

    def submit(self, event: SimulatedEvent | None, run: Callable[[], None]) -> _Work:
        """Run after the event, and after what was submitted before."""
        if event is not None:
            event.wait(self._stream)
        begun = self._stream.record_event()
        with self._stream:
            run()
        return _Work(begun, self._stream.record_event())


def replace_step_thread(_: MemoryTracker) -> None:
    """Engines that are built from now on have a simulated one."""
    from harness.patches import overlapped_step

    overlapped_step.StepThread = SimulatedThread  # type: ignore[assignment,misc]
