# SPDX-License-Identifier: Apache-2.0
"""A copy of the training state in host memory: training continues while a thread writes the copy.

Tensors that share memory share it in the copy too, so that the file equals that of a write without a copy. The next
copy of the same sizes reuses the memory.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch


class HostSnapshot:
    """Host memory for one copy at a time."""

    def __init__(self) -> None:
        self._spare: list[torch.UntypedStorage] = []
        self._used: list[torch.UntypedStorage] = []

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
            storage.copy_(source)
        return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _allocate(self, size: int) -> torch.UntypedStorage:
        index = next((i for i, s in enumerate(self._spare) if s.nbytes() == size), None)
        storage = torch.UntypedStorage(size) if index is None else self._spare.pop(index)
        self._used.append(storage)
        return storage


def available_host_bytes() -> int | None:
    """Host memory that is available without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
