# SPDX-License-Identifier: Apache-2.0
"""Finds accesses to the same bytes with no order between them, and memory that is given out while it is in use.

A kernel is ordered after what the host did before its launch; the host is ordered after a kernel only where it waits.
Streams, the collectives of a group and each read or write of a disk run at once until an event or a wait orders them.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_iter

from harness.runtime.simulation.collectives import group_of, is_async_collective
from harness.runtime.simulation.device_events import (
    COMM_STREAM,
    DEFAULT_STREAM,
    DISK,
    HOST,
    STEP_THREAD,
    DeviceObserver,
)
from harness.runtime.simulation.memory_tracker import calling_line
from harness.runtime.simulation.memory_uses import READ_OPERANDS, byte_range, uses_of_operator


class VectorClocks:
    """An agent is a name: the host, a stream, the collectives of a group, a read or write of a disk."""

    def __init__(self) -> None:
        self._clocks: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def tick(self, agent: str) -> int:
        """The time of the agent's next piece of work."""
        clock = self._clocks[agent]
        time = clock.get(agent, 0) + 1
        clock[agent] = time
        return time

    def now(self, agent: str) -> int:
        """The time of the agent's latest piece of work; 0 before the first."""
        return self._clocks[agent].get(agent, 0)

    def copy(self, agent: str) -> Mapping[str, int]:
        """The moment after all that the agent was given until now."""
        return dict(self._clocks[agent])

    def join(self, agent: str, other: str | Mapping[str, int]) -> None:
        """Order the agent's next work after another agent's work until now, or after a moment."""
        clock = self._clocks[agent]
        for name, time in (self._clocks[other] if isinstance(other, str) else other).items():
            if clock.get(name, 0) < time:
                clock[name] = time

    def is_ordered(self, agent: str, time: int, before: str) -> bool:
        """Is the agent's work at `time` ordered before the next work of `before`?"""
        return agent == before or self._clocks[before].get(agent, 0) >= time

    def agents(self) -> list[str]:
        """All that have worked or waited."""
        return list(self._clocks)


UNORDERED = "unordered"
REUSED = "reused"
_SMALL_BLOCK = 1 << 20
"""torch keeps blocks up to this size in segments of their own (CUDACachingAllocator.cpp, kSmallSize)."""


class _Access(NamedTuple):
    agent: str
    time: int
    first: int
    end: int
    is_write: bool
    operator: str
    line: str


@dataclass(slots=True)
class _Memory:
    """A storage: later allocations of the stream `owner` may get its memory. `number` counts allocations and frees.

    `known_use`: the owner's latest work on memory that was free when this was allocated.
    """

    storage: weakref.ref[torch.UntypedStorage]
    device: str
    owner: str
    number: int
    is_small: bool
    known_use: int = 0
    accesses: list[_Access] = field(default_factory=list)
    recorded: set[str] = field(default_factory=set)


class _FreedUse(NamedTuple):
    """An access by another stream to memory that was freed, and which its owner was not ordered after at that time."""

    number: int
    is_small: bool
    access: _Access


@dataclass(frozen=True, slots=True)
class RaceSide:
    """An access: `read` or `write`, the stream, the operator, and the line of code that called it."""

    action: str
    stream: str
    operator: str
    line: str


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses that may happen in either order. `kind`: UNORDERED, or REUSED where the first is to memory that was
    freed and that torch may have given to the second. `memory`: `device`, `page-locked` or `host`.
    """

    kind: str
    memory: str
    first: RaceSide
    second: RaceSide


class RaceDetector(DeviceObserver):
    """`races`: each pair of lines, and how often. `is_pinned` tells page-locked tensors."""

    def __init__(self, is_pinned: Callable[[torch.Tensor], bool]) -> None:
        self.races: Counter[Race] = Counter()
        self._is_pinned = is_pinned
        self._clocks = VectorClocks()
        self._memories: dict[int, _Memory] = {}
        self._freed: deque[int] = deque()
        self._freed_uses: defaultdict[str, list[_FreedUse]] = defaultdict(list)
        self._latest_freed_use: Counter[tuple[str, bool]] = Counter()
        self._number = 0
        self._events: dict[int, Mapping[str, int]] = {}
        self._collectives: dict[int, Mapping[str, int]] = {}
        self._waited: set[tuple[str, int]] = set()
        self._disk_requests: defaultdict[int, int] = defaultdict(int)
        self._names: dict[str, str] = {HOST: HOST, DEFAULT_STREAM: "default stream"}

    def on_op(self, func: Any, args: Any, kwargs: Any, out: Any, stream: str) -> None:
        """Every access of an operator."""
        self._drop_freed()
        self._note_allocations(out, stream)
        uses, host_waits = uses_of_operator(func, args, kwargs, out, self._is_pinned)
        if uses:
            operator = func._schema.name.split("::")[1]
            by_host = [use for use in uses if use.by_host]
            on_stream = [use for use in uses if not use.by_host]
            if by_host:
                self._access(HOST, [(use.tensor, use.is_write) for use in by_host], operator, stream)
            if on_stream:
                self._launch(stream, [(use.tensor, use.is_write) for use in on_stream], operator)
        if host_waits:
            self._clocks.join(HOST, stream)

    def on_collective(self, func: Any, args: Any, out: Any, stream: str, collective: int) -> None:
        """The accesses of a collective: on its group's own stream, or on the current one where the caller waits."""
        self._drop_freed()
        self._note_allocations(out, stream)
        name = func._schema.name.split("::")[1]
        is_async = is_async_collective(func, args)
        written = set() if name == "send" else {id(t) for t in tree_iter(args[0])}
        tensors = [(t, id(t) in written) for t in tree_iter(args) if isinstance(t, FakeTensor)]
        on_host = bool(tensors) and all(t.fake_device.type == "cpu" for t, _ in tensors)
        agent = f"{COMM_STREAM} {group_of(args)}" if is_async else HOST if on_host else stream
        self._names.setdefault(agent, f"collectives of group {group_of(args)}")
        self._clocks.join(agent, stream)
        self._launch(agent, tensors, name, stream)
        self._collectives[collective] = self._clocks.copy(agent)
        if name == "barrier" or (on_host and is_async):
            self._clocks.join(HOST, agent)

    def on_collective_wait(self, stream: str, collective: int | None) -> None:
        """Order the stream after the collective, and after those before it on its group's stream."""
        clock = self._collectives.get(collective or 0)
        if clock is not None:
            self._clocks.join(stream, clock)
            self._waited |= {(agent, time) for agent, time in clock.items() if agent.startswith(COMM_STREAM)}

    def on_compiled_op(self, name: str, device: str, tensors: Sequence[torch.Tensor], stream: str) -> None:
        """All tensors of an op of DeepSpeed are written but those that are known to be read only."""
        self._drop_freed()
        read = READ_OPERANDS.get(name.rpartition(".")[2], ())
        accesses = [(t, number not in read) for number, t in enumerate(tensors)]
        if device == "cpu" and stream != STEP_THREAD:
            self._access(HOST, accesses, name, stream)
        else:
            self._launch(stream, accesses, name)

    def on_disk_begin(self, tensor: torch.Tensor, *, is_write_to_disk: bool, handle: int) -> None:
        """Each read or write runs concurrently with all others."""
        self._drop_freed()
        self._disk_requests[handle] += 1
        agent = _disk_agent(handle, self._disk_requests[handle])
        self._names[agent] = DISK
        self._launch(agent, [(tensor, not is_write_to_disk)], "async_pwrite" if is_write_to_disk else "async_pread")

    def on_disk_wait(self, handle: int) -> None:
        """The host is after everything that the handle began."""
        for number in range(self._disk_requests.pop(handle, 0)):
            self._clocks.join(HOST, _disk_agent(handle, number + 1))

    def on_stream_wait(self, stream: str, other: str) -> None:
        """Order the stream after the other."""
        self._clocks.join(other, HOST)
        self._clocks.join(stream, other)

    def on_event_record(self, event: int, stream: str) -> None:
        """Keep this moment of the stream, which is after what the host did until now."""
        self._clocks.join(stream, HOST)
        self._events[event] = self._clocks.copy(stream)

    def on_event_wait(self, event: int, stream: str) -> None:
        """Order the stream after the event; an event that was never recorded orders nothing."""
        self._clocks.join(stream, self._events.get(event, {}))

    def on_host_wait(self, stream: str | None) -> None:
        """Order the host after a stream, or after all that runs on the device."""
        agents = self._clocks.agents() if stream is None else [stream]
        for agent in agents:
            if not agent.startswith(f"{DISK} "):
                self._clocks.join(HOST, agent)

    def on_work_cancelled(self, event: int, stream: str) -> None:
        """What the stream was to do after the event accesses nothing."""
        begun = self._events[event].get(stream, 0)
        for memory in self._memories.values():
            memory.accesses = [each for each in memory.accesses if each.agent != stream or each.time <= begun]

    def on_new_stream(self, stream: str) -> None:
        """Name the stream by the line that made it."""
        self._names[stream] = f"{stream} of {calling_line() or 'autograd'}"

    def on_record_stream(self, tensor: torch.Tensor, stream: str) -> None:
        """The allocator waits for this stream before it gives the memory out."""
        self._drop_freed()
        memory = self._memories.get(tensor.untyped_storage()._cdata)
        if memory is not None:
            memory.recorded.add(stream)

    def on_freed(self, key: int) -> None:
        """Keep the storage for the next event: this is called in the middle of anything."""
        self._freed.append(key)

    def to_json(self) -> list[dict[str, Any]]:
        """Values for JSON, the most frequent first; `count` of each."""
        return [{**asdict(race), "count": count} for race, count in self.races.most_common()]

    def _note_allocations(self, out: Any, stream: str) -> None:
        for tensor in tree_iter(out):
            if (
                isinstance(tensor, FakeTensor)
                and tensor.fake_device.type in ("cpu", "cuda")
                and tensor.untyped_storage().nbytes()
            ):
                self._find_memory(tensor, stream)

    def _find_memory(self, tensor: Any, stream: str) -> _Memory:
        storage = tensor.untyped_storage()
        memory = self._memories.get(storage._cdata)
        if memory is None or memory.storage() is not storage:
            self._number += 1
            reference, is_small = weakref.ref(storage), storage.nbytes() <= _SMALL_BLOCK
            if tensor.device.type == "cuda":
                known_use = self._latest_freed_use[stream, is_small]
                memory = _Memory(reference, "device", stream, self._number, is_small, known_use)
            else:
                memory = _Memory(
                    reference, "page-locked" if self._is_pinned(tensor) else HOST, HOST, self._number, is_small
                )
            self._memories[storage._cdata] = memory
        return memory

    def _drop_freed(self) -> None:
        """The accesses of other streams to freed memory stay until its owner is ordered after it, or writes memory that
        it may have got. The allocator knows of streams by `record_stream` alone, and of collectives until they are
        waited for, since torch keeps their tensors (ProcessGroupNCCL.cpp, stashed_for_allocator_safety_).
        """
        while self._freed:
            memory = self._memories.pop(self._freed.popleft(), None)
            if memory is None or memory.device != "device":
                continue
            self._number += 1
            for access in memory.accesses:
                agent, time = access.agent, access.time
                if agent == memory.owner:
                    key = memory.owner, memory.is_small
                    self._latest_freed_use[key] = max(self._latest_freed_use[key], time)
                elif not self._clocks.is_ordered(agent, time, memory.owner) and not self._is_held(memory, access):
                    self._freed_uses[memory.owner].append(_FreedUse(self._number, memory.is_small, access))

    def _is_held(self, memory: _Memory, access: _Access) -> bool:
        if access.agent.startswith(COMM_STREAM):
            return (access.agent, access.time) not in self._waited
        return access.agent in memory.recorded or access.agent == HOST

    def _launch(
        self, agent: str, tensors: Sequence[tuple[torch.Tensor, bool]], operator: str, stream: str = ""
    ) -> None:
        """Accesses of work that the host gives to another agent."""
        self._clocks.join(agent, HOST)
        self._access(agent, tensors, operator, stream or agent)

    def _access(self, agent: str, tensors: Sequence[tuple[torch.Tensor, bool]], operator: str, stream: str) -> None:
        time = self._clocks.tick(agent)
        line = calling_line() or f"autograd: {operator}"
        for tensor, is_write in tensors:
            first, end = byte_range(tensor)
            if first != end:
                access = _Access(agent, time, first, end, is_write, operator, line)
                memory = self._find_memory(tensor, stream)
                if memory.device == "device":
                    self._check_reuse(memory, access)
                self._check_order(memory, access)

    def _check_order(self, memory: _Memory, access: _Access) -> None:
        """Compare with earlier accesses, and forget those that whatever is ordered after this one is ordered after."""
        kept = []
        for earlier in memory.accesses:
            is_ordered = self._clocks.is_ordered(earlier.agent, earlier.time, access.agent)
            overlaps = earlier.first < access.end and access.first < earlier.end
            if overlaps and not is_ordered and (access.is_write or earlier.is_write):
                self._report(UNORDERED, memory.device, earlier, access)
            is_covered = access.first <= earlier.first and earlier.end <= access.end
            if not (is_ordered and is_covered and (access.is_write or not earlier.is_write)):
                kept.append(earlier)
        kept.append(access)
        memory.accesses = kept

    def _check_reuse(self, memory: _Memory, access: _Access) -> None:
        """Could this memory be some that was freed, which is still in use?"""
        owner = memory.owner
        if access.agent != owner and not self._clocks.is_ordered(owner, memory.known_use, access.agent):
            before = _Access(owner, memory.known_use, 0, 0, True, "earlier use of this memory", "torch's allocator")
            self._report(REUSED, memory.device, before, access)
            memory.known_use = 0
        uses = self._freed_uses[owner]
        if not uses:
            return
        kept = []
        for use in uses:
            earlier = use.access
            if self._clocks.is_ordered(earlier.agent, earlier.time, access.agent):
                if access.agent != owner:
                    kept.append(use)
            elif use.number < memory.number and use.is_small == memory.is_small and access.is_write:
                self._report(REUSED, memory.device, earlier, access)
            else:
                kept.append(use)
        self._freed_uses[owner] = kept

    def _report(self, kind: str, memory: str, first: _Access, second: _Access) -> None:
        self.races[Race(kind, memory, self._side(first), self._side(second))] += 1

    def _side(self, access: _Access) -> RaceSide:
        action = "write" if access.is_write else "read"
        return RaceSide(action, self._names.get(access.agent, access.agent), access.operator, access.line)


def _disk_agent(handle: int, number: int) -> str:
    """Requests are numbered between two waits, so that there are as many agents as were ever under way."""
    return f"{DISK} {handle}.{number}"
