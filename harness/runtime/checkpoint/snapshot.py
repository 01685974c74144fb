# SPDX-License-Identifier: Apache-2.0
"""A copy of the training state in host memory: training continues while a thread writes the copy.

Tensors that share memory share it in the copy too, so that the file equals that of a write without a copy. The next
copy of the same sizes reuses the memory. The memory of a GPU is copied through two pinned buffers: a copy to memory
that is not pinned goes through one of the driver's, part by part, while nothing else moves.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator

from harness.plan.memory.checkpoint_memory import SAVE_BLOCK_BYTES


class StagedCopy:
    """Copies from the device to host memory that is not pinned. The device fills one pinned buffer while the host
    empties the other, both in the order of the current stream.
    """

    def __init__(self, chunk_bytes: int = SAVE_BLOCK_BYTES) -> None:
        self._size = chunk_bytes
        is_gpu = get_accelerator().device_name() != "cpu"
        self._buffers = [torch.empty(chunk_bytes, dtype=torch.uint8, pin_memory=is_gpu) for _ in range(2)]
        self._events = [get_accelerator().Event() if is_gpu else None for _ in range(2)]

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy all bytes; both are uint8 of the same length. Returns once they are there."""
        pairs = list(zip(source.split(self._size), target.split(self._size), strict=True))
        for number, (part, _) in enumerate(pairs):
            self._fill(number % 2, part)
            if number:
                self._empty((number - 1) % 2, pairs[number - 1][1])
        if pairs:
            self._empty((len(pairs) - 1) % 2, pairs[-1][1])

    def _fill(self, slot: int, part: torch.Tensor) -> None:
        self._buffers[slot][: part.numel()].copy_(part, non_blocking=True)
        event = self._events[slot]
        if event is not None:
            event.record()

    def _empty(self, slot: int, part: torch.Tensor) -> None:
        event = self._events[slot]
        if event is not None:
            event.synchronize()
        part.copy_(self._buffers[slot][: part.numel()])


class HostSnapshot:
    """Host memory for one copy at a time."""

    def __init__(self) -> None:
        self._spare: list[torch.UntypedStorage] = []
        self._used: list[torch.UntypedStorage] = []
        self._staged_copy: StagedCopy | None = None

    def recycle_memory(self) -> None:
        """Make the memory of the last copy reusable; the caller knows that nobody reads it any more."""
        self._spare, self._used = self._spare + self._used, []

    def release_spare_memory(self) -> None:
        """Free the memory that this copy did not use."""
        self._spare = []

    def copy_of(self, content: Any) -> Any:
        """A copy of nested maps, lists and tuples, with every tensor in host memory."""
        return self._copy(content, {})

    def _copy(self, value: Any, storages: dict[tuple[str, int], torch.UntypedStorage]) -> Any:
        if isinstance(value, torch.Tensor):
            result: Any = self._copy_tensor(value, storages)
        elif isinstance(value, dict):
            result = copy.copy(value)  # keeps the class, and the `_metadata` of a module's state
            result.update((k, self._copy(v, storages)) for k, v in value.items())
        elif isinstance(value, list | tuple):
            items = [self._copy(v, storages) for v in value]
            result = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        else:
            result = copy.deepcopy(value)
        return result

    def _copy_tensor(self, tensor: torch.Tensor, storages: dict[tuple[str, int], torch.UntypedStorage]) -> torch.Tensor:
        source = tensor.detach().untyped_storage()
        if source.nbytes() == 0:
            return torch.empty(0, dtype=tensor.dtype).set_(torch.UntypedStorage(0), 0, tensor.shape, tensor.stride())
        key = (str(tensor.device), source.data_ptr())
        storage = storages.get(key)
        if storage is None:
            storage = storages[key] = self._allocate(source.nbytes())
            self._copy_storage(source, storage)
        return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _copy_storage(self, source: torch.UntypedStorage, target: torch.UntypedStorage) -> None:
        if not _is_on_device(source):
            target.copy_(source)
            return
        if self._staged_copy is None:
            self._staged_copy = StagedCopy()
        on_device, on_host = (torch.empty(0, dtype=torch.uint8, device=s.device).set_(s) for s in (source, target))
        self._staged_copy.copy(on_device, on_host)

    def _allocate(self, size: int) -> torch.UntypedStorage:
        index = next((i for i, s in enumerate(self._spare) if s.nbytes() == size), None)
        storage = torch.UntypedStorage(size) if index is None else self._spare.pop(index)
        self._used.append(storage)
        return storage


def _is_on_device(storage: torch.UntypedStorage) -> bool:
    return storage.device.type != "cpu"


def available_host_bytes() -> int | None:
    """Host memory that is available without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
