"""A copy of the training state in host memory, so that training can go on while it is written.

Tensors that share memory share it in the copy too: the file is the one that a write without a copy would give. The
memory of a copy is used again for the next one of the same sizes.
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
        """What the last copy used may be used again; the caller knows that nobody reads it any more."""
        self._spare, self._used = self._spare + self._used, []

    def release_spare_memory(self) -> None:
        """Give back what this copy had no use for."""
        self._spare = []

    def copy_of(self, content: Any) -> Any:
        """A copy of nested maps, lists and tuples; every tensor in host memory, all else as `copy.copy` has it."""
        return self._copy(content, {})

    def _copy(self, value: Any, storages: dict[tuple[str, int], torch.UntypedStorage]) -> Any:
        if isinstance(value, torch.Tensor):
            made: Any = self._copy_tensor(value, storages)
        elif isinstance(value, dict):
            made = copy.copy(value)  # keeps the kind, and the `_metadata` of a module's state
            made.update((k, self._copy(v, storages)) for k, v in value.items())
        elif isinstance(value, list | tuple):
            items = [self._copy(v, storages) for v in value]
            made = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        else:
            made = copy.deepcopy(value)
        return made

    def _copy_tensor(self, tensor: torch.Tensor, storages: dict[tuple[str, int], torch.UntypedStorage]) -> torch.Tensor:
        source = tensor.detach().untyped_storage()
        if source.nbytes() == 0:
            return torch.empty(0, dtype=tensor.dtype).set_(torch.UntypedStorage(0), 0, tensor.shape, tensor.stride())
        key = (str(tensor.device), source.data_ptr())
        held = storages.get(key)
        if held is None:
            held = storages[key] = self._allocate(source.nbytes())
            held.copy_(source)
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(held, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _allocate(self, size: int) -> torch.UntypedStorage:
        fitting = next((i for i, s in enumerate(self._spare) if s.nbytes() == size), None)
        storage = torch.UntypedStorage(size) if fitting is None else self._spare.pop(fitting)
        self._used.append(storage)
        return storage


def available_host_bytes() -> int | None:
    """Host memory that can be taken without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
