# SPDX-License-Identifier: Apache-2.0
"""Events of the simulated device, for what looks on: counters, a clock, a race detector. Each observer overrides some.

A stream is named; `HOST`, `COMM_STREAM` and `DISK` name those that have no stream object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

HOST = "host"
DEFAULT_STREAM = "default"
COMM_STREAM = "collectives"
"""The stream of the process group's collectives, as NCCL has one for each communicator."""
STEP_THREAD = "step thread"
"""The thread that steps sub-groups on the host beside the backward pass."""
DISK = "disk"
"""The threads of DeepSpeed's asynchronous I/O."""


class DeviceObserver:
    """Does nothing at each event."""

    def on_step(self, step: int | None) -> None:
        """An optimizer step begins, from its first micro-batch on; None: the last one has ended."""

    def on_op(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, stream: str
    ) -> None:
        """An operator of torch was called; its kernel runs on `stream`, or on the host for host tensors alone."""

    def on_collective(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], out: Any, stream: str, collective: int
    ) -> None:
        """A collective with this number began, ordered after what `stream` was given before."""

    def on_collective_wait(self, stream: str, collective: int | None) -> None:
        """`stream` waits for a collective; None: for one that no operator began."""

    def on_compiled_op(self, name: str, device: str, tensors: Sequence[torch.Tensor], stream: str) -> None:
        """An op of DeepSpeed was called: on the host for `cpu`, or on its thread `STEP_THREAD`; else on `stream`."""

    def on_disk_begin(self, tensor: torch.Tensor, *, is_write_to_disk: bool, handle: int) -> None:
        """An asynchronous read or write of a host tensor began."""

    def on_disk_wait(self, handle: int) -> None:
        """The host waited for all reads and writes of a handle."""

    def on_stream_wait(self, stream: str, other: str) -> None:
        """`stream.wait_stream(other)`."""

    def on_event_record(self, event: int, stream: str) -> None:
        """An event was recorded on a stream."""

    def on_event_wait(self, event: int, stream: str) -> None:
        """`stream` waits for an event; `HOST` for `event.synchronize()`."""

    def is_event_pending(self, event: int) -> bool:  # noqa: ARG002
        """Has the event not happened yet, by this observer's clock? The caller looks, and does not wait."""
        return False

    def on_work_cancelled(self, event: int, stream: str) -> None:
        """What `stream` was given from an event on is never done."""

    def is_stream_pending(self, stream: str) -> bool:  # noqa: ARG002
        """Has the stream more to do, by this observer's clock?"""
        return False

    def on_host_wait(self, stream: str | None) -> None:
        """The host waited for a stream; None: for the whole device."""

    def on_new_stream(self, stream: str) -> None:
        """A stream was made."""

    def on_record_stream(self, tensor: torch.Tensor, stream: str) -> None:
        """The caller declared to the allocator that another stream uses a tensor's memory."""

    def on_freed(self, key: int) -> None:
        """The storage with this `_cdata` was freed."""
