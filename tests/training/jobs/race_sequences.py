# SPDX-License-Identifier: Apache-2.0
"""Short sequences of work on the simulated device, each with its order and with one part of it left out.

`run_sequences` returns the races of each as `name`, or `name without ORDER`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

SEQUENCES: dict[str, Callable[[bool], None]] = {}


def sequence(function: Callable[[bool], None]) -> Callable[[bool], None]:
    """Keep a sequence by its name. It gets whether the order is there."""
    SEQUENCES[function.__name__] = function
    return function


def run_sequences() -> dict[str, list[dict[str, Any]]]:
    """Every sequence on one simulated device, with and without its order."""
    from harness.runtime.simulation.device import SimulatedRank, simulated_device
    from harness.runtime.simulation.memory_tracker import MemoryTracker
    from harness.runtime.simulation.race_detector import RaceDetector
    from harness.runtime.simulation.streams import OBSERVERS

    tracker = MemoryTracker()
    found: dict[str, list[dict[str, Any]]] = {}
    with simulated_device(SimulatedRank(0, 4, 0, 4), tracker, []):
        for name, function in SEQUENCES.items():
            for is_ordered in (True, False):
                detector = RaceDetector(lambda tensor: tensor.untyped_storage() in tracker.pinned)
                OBSERVERS[:] = [detector]
                function(is_ordered)
                torch.ones(1, device="cuda")  # takes memory that the sequence has freed
                OBSERVERS.clear()
                found[name if is_ordered else f"{name} without"] = detector.to_json()
    return found


def device(count: int = 8) -> torch.Tensor:
    """Zeros on the device."""
    return torch.zeros(count, device="cuda")


def pinned(count: int = 8) -> torch.Tensor:
    """Page-locked zeros."""
    return torch.zeros(count).pin_memory()


@sequence
def two_streams(is_ordered: bool) -> None:
    """A stream reads what the default stream wrote."""
    side, values = torch.cuda.Stream(), device()
    if is_ordered:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _ = values + 1
    torch.cuda.synchronize()


@sequence
def ranges_of_one_buffer(is_ordered: bool) -> None:
    """Two streams write different halves, or overlapping ones."""
    side, values = torch.cuda.Stream(), device()
    side.wait_stream(torch.cuda.current_stream())
    values[:4].fill_(1)
    with torch.cuda.stream(side):
        values[4 if is_ordered else 3 :].fill_(2)
    torch.cuda.synchronize()


@sequence
def readers_on_two_streams(is_ordered: bool) -> None:
    """Two streams read; then one of them writes while the other may still read."""
    side, values = torch.cuda.Stream(), device()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _ = values + 1
    _ = values + 2
    if not is_ordered:
        values.zero_()
    torch.cuda.synchronize()


@sequence
def event_on_another_stream(is_ordered: bool) -> None:
    """A stream waits for an event recorded after the write, or before it."""
    side, values, event = torch.cuda.Stream(), device(), torch.cuda.Event()
    if not is_ordered:
        event.record()
    values.fill_(1)
    if is_ordered:
        event.record()
    side.wait_event(event)
    with torch.cuda.stream(side):
        _ = values + 1
    torch.cuda.synchronize()


@sequence
def copy_to_page_locked(is_ordered: bool) -> None:
    """The host reads what a copy that does not block writes."""
    rows, values = pinned(), device()
    rows.copy_(values, non_blocking=True)
    if is_ordered:
        torch.cuda.current_stream().synchronize()
    _ = rows.sum().item()


@sequence
def copy_to_pageable(is_ordered: bool) -> None:
    """Such a copy to other memory blocks; `.to` makes page-locked memory."""
    values = device()
    rows = torch.zeros(8)
    if is_ordered:
        rows.copy_(values, non_blocking=True)
    else:
        rows = values.to("cpu", non_blocking=True)
    _ = rows + 1


@sequence
def page_locked_rows_filled_again(is_ordered: bool) -> None:
    """The host writes rows that a copy to the device may still read."""
    rows = pinned()
    copy = rows.to("cuda", non_blocking=True)
    if is_ordered:
        _ = copy.sum().item()
    rows.fill_(1)


@sequence
def pageable_rows_filled_again(is_ordered: bool) -> None:
    """Pageable rows are staged before the call returns; page-locked ones are not."""
    rows = torch.zeros(8) if is_ordered else pinned()
    _ = rows.to("cuda", non_blocking=True)
    rows.fill_(1)


@sequence
def boolean_index(is_ordered: bool) -> None:
    """The host waits where the elements of a mask are counted, and not where a kernel looks at it."""
    rows, values = pinned(), device()
    rows.copy_(values, non_blocking=True)
    if is_ordered:
        values[values > 0] = torch.ones((), device="cuda")
    else:
        values.masked_fill_(values > 0, 1.0)
    rows.fill_(1)


@sequence
def collective_waited_for(is_ordered: bool) -> None:
    """The current stream reads a result after it waited for this collective, or for an earlier one."""
    first, second, part = device(), device(), device(2)
    early = dist.all_gather_into_tensor(first, part, async_op=True)
    late = dist.all_gather_into_tensor(second, part, async_op=True)
    (late if is_ordered else early).wait()
    _ = second + 1
    late.wait()


@sequence
def earlier_collective(is_ordered: bool) -> None:
    """Collectives of a group run in turn: who waited for the later one has waited for the earlier; not so of another group."""
    group = dist.new_group([0, 1, 2, 3]) if not is_ordered else None
    first, second, part = device(), device(), device(2)
    early = dist.all_gather_into_tensor(first, part, async_op=True, group=group)
    dist.all_gather_into_tensor(second, part, async_op=True).wait()
    _ = first + 1
    early.wait()


@sequence
def blocking_collective_on_a_side_stream(is_ordered: bool) -> None:
    """It runs on the current stream, which is not the one that reads."""
    side, values = torch.cuda.Stream(), device()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(values)
    if is_ordered:
        torch.cuda.current_stream().wait_stream(side)
    _ = values + 1


@sequence
def memory_of_another_stream(is_ordered: bool) -> None:
    """A stream reads memory of the default stream, which frees it: declared to the allocator, or not."""
    side, values = torch.cuda.Stream(), device()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _ = values + 1
    if is_ordered:
        values.record_stream(side)
    del values


@sequence
def memory_freed_before_the_order(is_ordered: bool) -> None:
    """The default stream is ordered after the other between the free and the next allocation, or only after that."""
    side, values = torch.cuda.Stream(), device()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _ = values + 1
    del values
    if is_ordered:
        torch.cuda.current_stream().wait_stream(side)
    _ = device()
    torch.cuda.current_stream().wait_stream(side)


@sequence
def memory_allocated_for_another_stream(is_ordered: bool) -> None:
    """A stream writes memory that the default stream has just freed, and may still be using."""
    side, old = torch.cuda.Stream(), device()
    _ = old + 1
    del old
    new = torch.empty(8, device="cuda")
    if is_ordered:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        new.fill_(1)
    torch.cuda.synchronize()


@sequence
def disk_read(is_ordered: bool) -> None:
    """The host uses what is read after it waited for its handle, or for another."""
    from harness.runtime.simulation.compiled_ops import AioHandle

    one, other, rows = AioHandle(), AioHandle(), torch.zeros(8)
    one.async_pread(rows, "file")
    (one if is_ordered else other).wait()
    _ = rows + 1
    one.wait()


@sequence
def disk_write_of_a_copy(is_ordered: bool) -> None:
    """A write to disk begins when the copy from the device is done, or before."""
    from harness.runtime.simulation.compiled_ops import AioHandle

    handle, rows, values = AioHandle(), pinned(), device()
    rows.copy_(values, non_blocking=True)
    if is_ordered:
        torch.cuda.synchronize()
    handle.async_pwrite(rows, "file")
    handle.wait()
    torch.cuda.synchronize()


@sequence
def two_requests_of_a_handle(is_ordered: bool) -> None:
    """Reads and writes of one handle run beside each other."""
    from harness.runtime.simulation.compiled_ops import AioHandle

    handle, rows = AioHandle(), torch.zeros(8)
    handle.async_pwrite(rows, "old")
    if is_ordered:
        handle.wait()
    handle.async_pread(rows, "new")
    handle.wait()
