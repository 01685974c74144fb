# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's CUDA accelerator without CUDA: memory comes from the tracker, streams and events from `streams`."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

from harness.runtime.simulation.memory_tracker import MemoryTracker
from harness.runtime.simulation.streams import DEFAULT, OBSERVERS, SimulatedEvent, SimulatedStream, current_stream

_UNLIMITED = 1 << 50
CAPABILITY = (9, 0)


class SimulatedAccelerator(CUDA_Accelerator):  # type: ignore[misc]
    """One device, `cuda:0`, of `tracker.capacity["cuda"]` bytes."""

    Stream = SimulatedStream
    Event = SimulatedEvent

    def __init__(self, tracker: MemoryTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def _init_pynvml(self) -> None:
        """No driver is asked."""

    def set_device(self, device_index: Any) -> None:
        """Nothing: the simulated GPU is the only one."""

    def current_device(self) -> int:
        """0."""
        return 0

    def device_name(self, device_index: Any = None) -> str:
        """`cuda:0` for the device of any local rank: this rank sees no other's."""
        return "cuda" if device_index is None else "cuda:0"

    def current_device_name(self) -> str:
        """`cuda:0`."""
        return "cuda:0"

    def device_count(self) -> int:
        """1."""
        return 1

    def is_available(self) -> bool:
        """True."""
        return True

    def synchronize(self, device_index: Any = None) -> None:  # noqa: ARG002
        """The host waits for all streams."""
        synchronize_device()

    def get_rng_state(self, device_index: Any = None) -> torch.Tensor:  # noqa: ARG002
        """The host's: no value is drawn on the device."""
        return torch.get_rng_state()

    def set_rng_state(self, new_state: Any, device_index: Any = None) -> None:
        """Nothing is drawn."""

    def manual_seed(self, seed: int) -> None:
        """Nothing is drawn."""

    def manual_seed_all(self, seed: int) -> None:
        """Nothing is drawn."""

    def initial_seed(self) -> int:
        """0."""
        return 0

    def default_generator(self, device_index: Any) -> torch.Generator:  # noqa: ARG002
        """The host's."""
        return torch.default_generator

    def stream(self, stream: SimulatedStream | None) -> Any:
        """The context in which the stream is current."""
        return stream if stream is not None else contextlib.nullcontext()

    def current_stream(self, device_index: Any = None) -> SimulatedStream:  # noqa: ARG002
        """The current stream of this thread."""
        return current_stream()

    def default_stream(self, device_index: Any = None) -> SimulatedStream:  # noqa: ARG002
        """The default stream."""
        return DEFAULT

    def empty_cache(self) -> None:
        """The tracker keeps no cache."""

    def memory_allocated(self, device_index: Any = None) -> int:  # noqa: ARG002
        """Bytes of live storages."""
        return self._tracker.bytes_now["cuda"]

    def max_memory_allocated(self, device_index: Any = None) -> int:  # noqa: ARG002
        """The most of any phase."""
        return max((peaks["cuda"].bytes for peaks in self._tracker.peaks.values() if "cuda" in peaks), default=0)

    memory_cached = memory_reserved = memory_allocated
    max_memory_cached = max_memory_reserved = max_memory_allocated

    def reset_max_memory_allocated(self, device_index: Any = None) -> None:
        """Peaks are kept by phase."""

    reset_max_memory_cached = reset_peak_memory_stats = reset_max_memory_allocated

    def memory_stats(self, device_index: Any = None) -> dict[str, int]:  # noqa: ARG002
        """The keys that DeepSpeed and the harness read."""
        peak = self.max_memory_allocated()
        return {
            "allocated_bytes.all.current": self.memory_allocated(),
            "allocated_bytes.all.peak": peak,
            "reserved_bytes.all.peak": peak,
            "num_alloc_retries": 0,
        }

    def total_memory(self, device_index: Any = None) -> int:  # noqa: ARG002
        """The capacity of the device."""
        return self._tracker.capacity.get("cuda", _UNLIMITED)

    def available_memory(self, device_index: Any = None) -> int:  # noqa: ARG002
        """The capacity without live storages: DeepSpeed decides by it where to flatten."""
        return self.total_memory() - self.memory_allocated()

    def range_push(self, msg: str, **_: Any) -> None:
        """No profiler."""

    def range_pop(self, **_: Any) -> None:
        """No profiler."""

    def lazy_call(self, callback: Any) -> None:
        """Nothing is initialised later."""

    def is_bf16_supported(self) -> bool:
        """True."""
        return True

    def is_fp16_supported(self) -> bool:
        """True."""
        return True

    def is_triton_supported(self) -> bool:
        """False: nothing is compiled."""
        return False


def synchronize_device(*_: Any, **__: Any) -> None:
    """The host waits for all streams."""
    for observer in OBSERVERS:
        observer.on_host_wait(None)
