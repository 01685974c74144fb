# SPDX-License-Identifier: Apache-2.0
"""The clock of the simulated device: each operation takes the seconds of the planner's rates, and waits for what is
before it.

The host issues in order; a stream, the collectives of a group and the disk work in the order in which they were given
work, at the same time, until an event or a wait orders them. Two copies in one direction, two collectives on the same
links and two kernels share what they run on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_iter

from harness.plan.simulation.clock_rates import ClockRates
from harness.runtime.simulation.busy_time import Interval, SharedResource, clip, exposed_seconds, total, union
from harness.runtime.simulation.collectives import find_group, is_async_collective
from harness.runtime.simulation.device_events import (
    COMM_STREAM,
    DEFAULT_STREAM,
    DISK,
    HOST,
    STEP_THREAD,
    DeviceObserver,
)
from harness.runtime.simulation.memory_tracker import MemoryTracker
from harness.runtime.simulation.memory_uses import READ_OPERANDS
from harness.runtime.simulation.operator_cost import work_of_operator
from harness.runtime.simulation.timeline import Timeline
from harness.runtime.simulation.traffic import collective_bytes, is_exchange, kind_of_collective

COMPUTE, CPU_WORK = "compute", "CPU optimizer"
TO_DEVICE, TO_HOST = "host to device", "device to host"
DISK_READ, DISK_WRITE = "disk read", "disk write"
KINDS = (
    COMPUTE,
    CPU_WORK,
    "all-gather",
    "reduce",
    "other collectives",
    TO_DEVICE,
    TO_HOST,
    DISK_READ,
    DISK_WRITE,
)
"""Kinds of work. Seconds that two kinds share are counted as those of the first."""
_COPIES = {"to device": TO_DEVICE, "to host": TO_HOST}
_POLL = 10e-6
"""Seconds of a look at an event that has not happened: a host that polls comes to its time."""


class _Segment(NamedTuple):
    """A pass or an optimizer step: it begins where the host and the default stream have done all before it."""

    phase: str
    start: float


class StepClock(DeviceObserver):
    """Times the last step, and runs from the first one on. `timeline`: gets every piece of work, for a trace."""

    def __init__(self, rates: ClockRates, tracker: MemoryTracker, timeline: Timeline | None = None) -> None:
        self._rates, self._tracker, self._timeline = rates, tracker, timeline
        self._free: defaultdict[str, float] = defaultdict(float)
        self._resources: defaultdict[str, SharedResource] = defaultdict(SharedResource)
        self._collective_cost = CollectiveCost(rates)
        self._collectives: dict[int, float] = {}
        self._events: dict[int, float] = {}
        self._disk: defaultdict[int, float] = defaultdict(float)
        self._intervals: defaultdict[str, list[Interval]] = defaultdict(list)
        self._segments: list[_Segment] = []
        self._phase = ""
        self._is_running = False
        self._end: float | None = None

    def on_step(self, step: int | None) -> None:
        """A step begins: what was timed before is dropped. None: the last one has ended."""
        self._is_running = step is not None
        if step is None:
            self._free[HOST] += self._rates.step
            self._end = self._now()
            return
        self._intervals.clear()
        self._segments.clear()
        self._phase = ""
        if self._timeline is not None:
            self._timeline.clear()

    def on_op(self, func: Any, args: Any, kwargs: Any, out: Any, stream: str) -> None:
        """The kernel of an operator on its stream, a copy, or the work of the host."""
        if not self._enter_phase():
            return
        rates = self._rates
        byte_cost = rates.pass_memory if self._phase in ("forward", "backward") else rates.step_memory
        work = work_of_operator(func, args, kwargs, out, rates, byte_cost, self._is_pinned)
        if work is None:
            return
        name = func._schema.name.split("::")[1]
        if work.place == HOST:
            self._work_on_host(work.seconds, name)
        elif work.place == "stream":
            self._launch(COMPUTE, COMPUTE, stream, work.seconds, name)
        else:
            self._launch(_COPIES[work.place], work.place, stream, work.seconds, name)
        if work.host_waits:
            self._raise_to(HOST, self._free[stream])

    def on_collective(self, func: Any, args: Any, out: Any, stream: str, collective: int) -> None:  # noqa: ARG002
        """On its group's own stream, or on the current one where the caller waits."""
        if not self._enter_phase():
            return
        cost = self._collective_cost.of(func, args)
        self._free[HOST] += cost.issue
        if cost.is_on_host:
            self._collectives[collective] = self._free[HOST]
            return
        agent = f"{COMM_STREAM} {cost.group}" if cost.is_async else stream
        self._raise_to(agent, self._free[stream])
        self._launch(cost.kind, cost.wire, agent, cost.seconds, func._schema.name.split("::")[1])
        self._collectives[collective] = self._free[agent]

    def on_collective_wait(self, stream: str, collective: int | None) -> None:
        """The stream goes on after the collective; the host does not wait."""
        self._raise_to(stream, self._collectives.get(collective or 0, 0.0))

    def on_compiled_op(self, name: str, device: str, tensors: Sequence[torch.Tensor], stream: str) -> None:
        """Masters, gradients and states are read, weights and copies are not; all but gradients are written."""
        if not self._enter_phase():
            return
        read_only = READ_OPERANDS.get(name.rpartition(".")[2], ())
        num_bytes = sum(
            t.numel() * t.element_size() * (1 if number in read_only or number > 3 else 2)
            for number, t in enumerate(tensors)
        )
        if stream == STEP_THREAD:
            start = max(self._free[stream], self._free[HOST])
            self._free[stream] = start + num_bytes * self._rates.host_memory
            self._record(CPU_WORK, stream, start, self._free[stream], name)
        elif device == "cpu":
            self._work_on_host(num_bytes * self._rates.host_memory, name)
        else:
            self._launch(COMPUTE, COMPUTE, stream, num_bytes * self._rates.step_memory, name)

    def on_disk_begin(self, tensor: torch.Tensor, *, is_write_to_disk: bool, handle: int) -> None:
        """A read or write; the disk has one bandwidth for all."""
        if not self._enter_phase():
            return
        num_bytes = tensor.numel() * tensor.element_size()
        rate = self._rates.disk_write if is_write_to_disk else self._rates.disk_read
        kind = DISK_WRITE if is_write_to_disk else DISK_READ
        start, end = self._resources[DISK].reserve(self._free[HOST], num_bytes * rate)
        self._disk[handle] = max(self._disk[handle], end)
        self._record(kind, kind, start, end, "async_pwrite" if is_write_to_disk else "async_pread")

    def on_disk_wait(self, handle: int) -> None:
        """The host goes on when all reads and writes of the handle are done."""
        self._raise_to(HOST, self._disk.pop(handle, 0.0))

    def on_stream_wait(self, stream: str, other: str) -> None:
        """The stream goes on when the other has done what it was given."""
        self._raise_to(stream, self._free[other])

    def on_event_record(self, event: int, stream: str) -> None:
        """The event happens when the stream has come so far."""
        self._events[event] = max(self._free[stream], self._free[HOST])

    def on_event_wait(self, event: int, stream: str) -> None:
        """The stream, or the host, goes on after the event."""
        self._raise_to(stream, self._events.get(event, 0.0))

    def on_host_wait(self, stream: str | None) -> None:
        """The host goes on when a stream, or all that runs on the device, is done."""
        self._raise_to(HOST, self._free[stream] if stream is not None else max(self._free.values(), default=0.0))

    def on_work_cancelled(self, event: int, stream: str) -> None:
        """The host does none itself that ends later than now."""
        time = self._events[event]
        self._free[stream] = min(self._free[stream], time)
        self._intervals[CPU_WORK] = clip(self._intervals[CPU_WORK], (0.0, time))

    def is_event_pending(self, event: int) -> bool:
        """Is the event later than the host?"""
        return self._is_pending(self._events.get(event, 0.0))

    def is_stream_pending(self, stream: str) -> bool:
        """Has the stream more to do?"""
        return self._is_pending(self._free[stream])

    def to_json(self) -> dict[str, Any] | None:
        """Seconds of each segment of the step, in order: of all, and by kind those that are busy and those that no
        kind before it hides. The rest of a segment is the host's. None where no step came to its end.
        """
        if self._end is None or not self._segments:
            return None
        unions = {kind: union(self._intervals[kind]) for kind in KINDS if kind in self._intervals}
        ends = [*(segment.start for segment in self._segments[1:]), self._end]
        segments = []
        for segment, end in zip(self._segments, ends, strict=True):
            clipped = {kind: clip(intervals, (segment.start, end)) for kind, intervals in unions.items()}
            busy = {kind: total(intervals) for kind, intervals in clipped.items() if intervals}
            exposed = exposed_seconds(clipped, [kind for kind in KINDS if kind in busy])
            segments.append({"phase": segment.phase, "seconds": end - segment.start, "busy": busy, "exposed": exposed})
        result: dict[str, Any] = {"segments": segments}
        if self._timeline is not None:
            start = self._segments[0].start
            phases = [(segment.phase, segment.start, end) for segment, end in zip(self._segments, ends, strict=True)]
            result["trace"] = self._timeline.to_json(phases, (start, self._end))
        return result

    def _enter_phase(self) -> bool:
        """Is a step under way? A segment begins with the first work of another phase."""
        phase = self._tracker.phase
        if phase == self._phase or not self._is_running:
            return self._is_running
        self._phase = phase
        for resource in self._resources.values():
            resource.forget_before(self._free[HOST])
        self._segments.append(_Segment("step" if phase == "first step" else phase, self._now()))
        return True

    def _now(self) -> float:
        return max(self._free[HOST], self._free[DEFAULT_STREAM])

    def _launch(self, kind: str, resource: str, agent: str, seconds: float, name: str) -> None:
        """Work that the host gives to a stream."""
        free = self._free
        free[HOST] += self._rates.launch
        ready = max(free[agent], free[HOST])
        if seconds > 0:
            start, end = self._resources[resource].reserve(ready, seconds)
            self._record(kind, agent, start, end, name)
            free[agent] = end
        else:
            free[agent] = ready

    def _work_on_host(self, seconds: float, name: str) -> None:
        start = self._free[HOST]
        self._free[HOST] = start + self._rates.launch + seconds
        if seconds > self._rates.launch:
            self._record(CPU_WORK, CPU_WORK, start, self._free[HOST], name)

    def _record(self, kind: str, track: str, start: float, end: float, name: str) -> None:
        intervals = self._intervals[kind]
        if intervals and intervals[-1][1] == start:
            intervals[-1] = intervals[-1][0], end
        else:
            intervals.append((start, end))
        if self._timeline is not None:
            self._timeline.add(track, kind, self._phase, start, end, name)

    def _raise_to(self, agent: str, time: float) -> None:
        self._free[agent] = max(self._free[agent], time)

    def _is_pending(self, time: float) -> bool:
        if time <= self._free[HOST]:
            return False
        self._free[HOST] += _POLL
        return True

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage() in self._tracker.pinned


_REDUCTIONS = ("reduce-scatter", "all-reduce", "reduce")
_MESSAGES = ("send", "receive", "barrier")
_RINGS = {"all-reduce": 2.0}
"""Times that a ring carries the payload; once for all others."""


class CollectiveWork(NamedTuple):
    """`kind`: `all-gather`, `reduce` or `other collectives`; `wire`: the links that it shares with others. `issue`:
    seconds of the host. `is_on_host`: of host tensors, which take no time here.
    """

    kind: str
    wire: str
    group: str
    seconds: float
    issue: float
    is_async: bool
    is_on_host: bool


class CollectiveCost:
    """Knows the ranks of each group."""

    def __init__(self, rates: ClockRates) -> None:
        self._rates = rates
        self._groups: dict[str, tuple[int, int]] = {}

    def of(self, func: Any, args: Any) -> CollectiveWork:
        """The work of a collective that is called with these arguments."""
        kind, num_bytes = kind_of_collective(func), collective_bytes(args)
        group = find_group(args)
        if is_exchange(func):  # its input has a row for each rank of the group, which are neighbours
            name, ranks, stride = f"sequence {args[1]}", int(args[0].shape[0]), 1
        else:
            name = "" if group is None else str(group.group_name)
            ranks, stride = self._ranks_of(name, group)
        tensors = [t for t in tree_iter(args) if isinstance(t, FakeTensor)]
        issue = self._rates.gather_issue if kind == "all-gather" else 0.0
        issue = self._rates.reduction_issue if kind in _REDUCTIONS else issue
        return CollectiveWork(
            kind if kind == "all-gather" else "reduce" if kind in _REDUCTIONS else "other collectives",
            "network" if self._rates.links.leaves_host(ranks, stride) else "links",
            name,
            self._seconds(kind, num_bytes, ranks, stride),
            issue * num_bytes,
            is_async_collective(func, args),
            bool(tensors) and all(t.fake_device.type == "cpu" for t in tensors),
        )

    def _seconds(self, kind: str, num_bytes: int, ranks: int, stride: int) -> float:
        rates = self._rates
        if ranks < 2:
            return 0.0
        if kind in _MESSAGES:
            return rates.collective_scale * (num_bytes / rates.links.peer_to_peer(ranks) + rates.message)
        bandwidth = rates.links.peer_to_peer(ranks) if kind == "all-to-all" else rates.links.ring(ranks, stride)
        payload = num_bytes * _RINGS.get(kind, 1.0) * (ranks - 1) / ranks
        return rates.collective_scale * payload / bandwidth

    def _ranks_of(self, name: str, group: Any) -> tuple[int, int]:
        """The number of ranks, and the distance from one to the next; all ranks where no group is named."""
        found = self._groups.get(name)
        if found is None:
            ranks = list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)
            found = self._groups[name] = len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 1
        return found
