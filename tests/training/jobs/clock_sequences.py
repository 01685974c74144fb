# SPDX-License-Identifier: Apache-2.0
"""Short sequences of work on the simulated device, with rates at which their seconds can be counted by hand.

A byte takes a millisecond wherever it moves, an operation of a product a microsecond. Run by `support/training/simulated_ranks.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.plan.simulation.clock_rates import ClockRates
from harness.plan.time.rates import LinkRates
from tests.training.jobs.race_cases import answer_case

MILLI = 1e-3
RATES = ClockRates(
    matmul=1e-6,
    attention_forward=1e-6,
    attention_backward=1e-6,
    pass_memory=MILLI,
    step_memory=MILLI,
    launch=0.0,
    gather_issue=0.0,
    reduction_issue=0.0,
    step=0.0,
    pcie=MILLI,
    host_memory=MILLI,
    disk_read=MILLI,
    disk_write=MILLI,
    message=0.0,
    collective_scale=1.0,
    links=LinkRates(1000.0, 500.0, 4),
)
SEQUENCES: dict[str, Callable[[], None]] = {}


def sequence(function: Callable[[], None]) -> Callable[[], None]:
    """Keep a sequence by its name."""
    SEQUENCES[function.__name__] = function
    return function


def device(count: int) -> torch.Tensor:
    """Memory of so many floats on the device; no kernel."""
    return torch.empty(count, device="cuda")


def pinned(count: int) -> torch.Tensor:
    """Page-locked memory of so many floats; no kernel."""
    return torch.empty(count, pin_memory=True)


def one_host() -> Any:
    """The four ranks of this host."""
    return dist.new_group([0, 1, 2, 3])


def multiply() -> None:
    """A product of 2 x 100 x 100 x 50 operations: 1 s."""
    device(5000).view(50, 100) @ device(10_000).view(100, 100)


@sequence
def a_product_and_a_kernel() -> None:
    """1 s of operations, then 1,000 bytes written."""
    multiply()
    device(250).fill_(1)


@sequence
def products_of_experts() -> None:
    """20 rows of 128 with 4 experts of 128 x 64: each row with one of them, 2 x 20 x 128 x 64 operations."""
    rows, experts = (torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in ((20, 128), (4, 128, 64)))
    ends = torch.empty(4, device="cuda", dtype=torch.int32)
    torch.nn.functional.grouped_mm(rows, experts, offs=ends)


@sequence
def a_causal_attention() -> None:
    """100 heads of 8 positions: half of 4 x 100 x 8 x 8 x 16 operations, then a backward pass with 2.5 times as many."""
    shape = (1, 100, 8, 16)
    query, key, value = (torch.empty(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    out.backward(torch.empty_like(out))


@sequence
def two_kernels_on_two_streams() -> None:
    """Kernels share the GPU: they take the sum of their seconds."""
    with torch.cuda.stream(torch.cuda.Stream()):
        multiply()
    multiply()
    torch.cuda.synchronize()


@sequence
def a_copy_behind_a_product() -> None:
    """A copy of 400 bytes on a stream of its own; nothing is before it."""
    with torch.cuda.stream(torch.cuda.Stream()):
        device(100).copy_(pinned(100), non_blocking=True)
    multiply()


@sequence
def a_copy_after_an_event() -> None:
    """The stream of the copy waits for the first product, and the default stream waits for the copy."""
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    multiply()
    event.record()
    side.wait_event(event)
    with torch.cuda.stream(side):
        device(100).copy_(pinned(100), non_blocking=True)
    multiply()
    torch.cuda.current_stream().wait_stream(side)


@sequence
def a_copy_on_the_same_stream() -> None:
    """A product, a copy, a product: in turn."""
    multiply()
    pinned(100).copy_(device(100), non_blocking=True)
    multiply()


@sequence
def a_copy_from_pageable_memory() -> None:
    """The host waits for it, and launches the product only then."""
    with torch.cuda.stream(torch.cuda.Stream()):
        device(100).copy_(torch.empty(100))
    multiply()


@sequence
def two_copies_in_one_direction() -> None:
    """On two streams, beside each other: they share the bandwidth."""
    for _ in range(2):
        with torch.cuda.stream(torch.cuda.Stream()):
            device(100).copy_(pinned(100), non_blocking=True)
    torch.cuda.synchronize()


@sequence
def copies_in_both_directions() -> None:
    """Each direction has its own bandwidth."""
    with torch.cuda.stream(torch.cuda.Stream()):
        device(100).copy_(pinned(100), non_blocking=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        pinned(100).copy_(device(100), non_blocking=True)
    torch.cuda.synchronize()


@sequence
def a_gather_that_is_waited_for() -> None:
    """4 ranks gather 800 bytes over links of 1,000 bytes a second: 3/4 of them come from others. Then a product."""
    dist.all_gather_into_tensor(device(200), device(50), async_op=True, group=one_host()).wait()
    multiply()


@sequence
def a_gather_ahead() -> None:
    """The same gather behind a product."""
    handle = dist.all_gather_into_tensor(device(200), device(50), async_op=True, group=one_host())
    multiply()
    handle.wait()


@sequence
def a_blocking_gather() -> None:
    """Without `async_op` it runs on the current stream."""
    multiply()
    dist.all_gather_into_tensor(device(200), device(50), group=one_host())
    multiply()


@sequence
def an_all_reduce() -> None:
    """A ring carries the payload twice."""
    dist.all_reduce(device(200), group=one_host())


@sequence
def a_ring_between_hosts() -> None:
    """Ranks 0 and 4 are on two hosts, and have a quarter of the network's 500 bytes a second for 400 of 800 bytes."""
    dist.all_gather_into_tensor(device(200), device(100), group=dist.new_group([0, 4]))


@sequence
def cpu_adam_beside_the_gpu() -> None:
    """5 reads and writes of 100 floats, 2,000 bytes, of which a product hides half."""
    multiply()
    cpu_adam()


@sequence
def cpu_adam_after_the_gpu() -> None:
    """The host waits for the product."""
    multiply()
    torch.cuda.synchronize()
    cpu_adam()


@sequence
def cpu_adam_into_other_tensors() -> None:
    """Four tensors are read and four written, past the caches: 8 x 400 bytes."""
    from harness.runtime.simulation.compiled_ops import CompiledOps

    CompiledOps("cpu_adam").adam_update_beside(*(torch.empty(100) for _ in range(8)))


@sequence
def a_value_is_read() -> None:
    """`item` waits for the product, and the read that follows begins then."""
    multiply()
    device(1).item()
    read(100, is_waited_for=True)


@sequence
def a_read_behind_the_cpu() -> None:
    """400 bytes of the disk while the CPU steps 2 s."""
    handle = read(100)
    cpu_adam()
    handle.wait()


@sequence
def a_read_that_is_waited_for() -> None:
    """The CPU steps when the read is done."""
    read(100, is_waited_for=True)
    cpu_adam()


@sequence
def a_read_and_a_write() -> None:
    """They share the disk."""
    read(100)
    from harness.runtime.simulation.compiled_ops import AioHandle

    handle = AioHandle()
    handle.async_pwrite(pinned(100), "file")
    handle.wait()


@sequence
def a_poll_of_an_event() -> None:
    """It says no until the host's time has come; then 400 bytes on the host, after the product: read before they are
    written, and read and written.
    """
    event = torch.cuda.Event()
    multiply()
    event.record()
    polls = 0
    while not event.query():
        polls += 1
    assert polls > 10
    torch.zeros(100).add_(1)


def cpu_adam() -> None:
    """100 floats: three tensors are read and written, the gradient is read. 7 x 400 bytes: 2.8 s."""
    from harness.runtime.simulation.compiled_ops import CompiledOps

    CompiledOps("cpu_adam").adam_update(*(torch.empty(100) for _ in range(4)))


def read(count: int, *, is_waited_for: bool = False) -> Any:
    """Begin a read of so many floats."""
    from harness.runtime.simulation.compiled_ops import AioHandle

    handle = AioHandle()
    handle.async_pread(pinned(count), "file")
    if is_waited_for:
        handle.wait()
    return handle


def run_sequences(_case: None, _folder: Path) -> dict[str, Any]:
    """Every sequence as the forward pass of a step."""
    from harness.runtime.simulation.device import SimulatedRank, simulated_device
    from harness.runtime.simulation.memory_tracker import MemoryTracker
    from harness.runtime.simulation.step_clock import StepClock
    from harness.runtime.simulation.streams import OBSERVERS
    from harness.runtime.simulation.timeline import Timeline

    tracker, answers = MemoryTracker(), {}
    with simulated_device(SimulatedRank(0, 8, 0, 4), tracker, []):
        for name, function in SEQUENCES.items():
            clock = StepClock(RATES, tracker, Timeline())
            OBSERVERS[:] = [clock]
            clock.on_step(1)
            tracker.enter_phase("forward")
            function()
            clock.on_host_wait(None)
            clock.on_step(None)
            OBSERVERS.clear()
            answers[name] = clock.to_json()
    return answers


if __name__ == "__main__":
    answer_case(run_sequences)
