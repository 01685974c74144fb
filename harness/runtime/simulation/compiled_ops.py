# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's compiled ops on the simulated device: nothing is computed, read or written; devices are checked.

A tensor on the wrong device raises DeviceMismatchError, as the op would crash or compute on garbage.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from harness.runtime.simulation.streams import OBSERVERS, current_stream

_handle_numbers = itertools.count(1)
_HOST_OPS = ("cpu", "aio", "async_io", "pin_memory", "gds")
DISK_BYTES: Counter[str] = Counter()
"""Bytes `read` and `written`, and the number of each: `reads`, `writes`."""
IS_PINNED: list[Callable[[torch.Tensor], bool]] = [lambda _: False]
MARK_PINNED: list[Callable[[torch.Tensor], None]] = [lambda _: None]


class DeviceMismatchError(RuntimeError):
    """An op got a tensor that is not on its device."""


class CompiledOps:
    """Any extension of DeepSpeed, whose functions check the devices of their tensors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._device = "cpu" if any(part in name for part in _HOST_OPS) else "cuda"

    def __getattr__(self, function: str) -> Any:
        if function in ("aio_handle", "gds_handle"):
            return AioHandle
        if function == "pin_handle":
            return PinHandle
        name = f"{self._name}.{function}"

        def call(*args: Any, **kwargs: Any) -> None:
            tensors = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor) and t.numel()]
            check_devices(name, self._device, tensors)
            for observer in OBSERVERS:
                observer.on_compiled_op(name, self._device, tensors, current_stream().name)

        return call


def check_devices(name: str, device: str, tensors: list[torch.Tensor]) -> None:
    """Raises DeviceMismatchError for a tensor that is not on `device`. 0-dimensional host tensors are numbers."""
    for tensor in tensors:
        if tensor.device.type != device and not (tensor.dim() == 0 and tensor.device.type == "cpu"):
            raise DeviceMismatchError(
                f"`{name}` got a tensor of {tuple(tensor.shape)} on {tensor.device}, not {device}"
            )


class PinHandle:
    """DeepSpeed's allocator of page-locked memory, which takes the exact bytes."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Is the tensor's memory page-locked?"""
        return IS_PINNED[0](tensor)

    def new_cpu_locked_tensor(self, count: int, like: torch.Tensor) -> torch.Tensor:
        """A page-locked tensor of so many elements."""
        tensor = torch.empty(int(count), dtype=like.dtype, device="cpu")
        MARK_PINNED[0](tensor)
        return tensor

    def free_cpu_locked_tensor(self, _: torch.Tensor) -> bool:
        """The tensor frees itself."""
        return True

    def free_cpu_locked_tensor_by_ptr(self, _: int) -> bool:
        """The tensor frees itself."""
        return True


class AioHandle(PinHandle):
    """DeepSpeed's handle of asynchronous I/O: bytes are counted, nothing is read or written. A file that is written
    gets its size, and takes no place on the disk.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        self._pending = 0
        self._number = next(_handle_numbers)

    def async_pread(self, tensor: torch.Tensor, *_: Any) -> int:
        """Begin a read into the tensor."""
        return self._begin(tensor)

    def async_pwrite(self, tensor: torch.Tensor, path: str, offset: int = 0, *_: Any) -> int:
        """Begin a write of the tensor."""
        return self._begin(tensor, (path, offset))

    def sync_pread(self, tensor: torch.Tensor, *_: Any) -> int:
        """Read into the tensor, and wait."""
        self._begin(tensor)
        return self.wait()

    def sync_pwrite(self, tensor: torch.Tensor, path: str, offset: int = 0, *_: Any) -> int:
        """Write the tensor, and wait."""
        self._begin(tensor, (path, offset))
        return self.wait()

    read = pread = sync_pread
    write = pwrite = sync_pwrite

    def wait(self) -> int:
        """Wait for everything that began; returns how many."""
        count, self._pending = self._pending, 0
        for observer in OBSERVERS:
            observer.on_disk_wait(self._number)
        return count

    def _begin(self, tensor: torch.Tensor, target: tuple[str, int] | None = None) -> int:
        check_devices("async_io", "cpu", [tensor])
        self._pending += 1
        is_write_to_disk = target is not None
        num_bytes = tensor.numel() * tensor.element_size()
        DISK_BYTES["written" if is_write_to_disk else "read"] += num_bytes
        if target is not None:
            _extend_file(target[0], int(target[1]) + num_bytes)
        DISK_BYTES["writes" if is_write_to_disk else "reads"] += 1
        for observer in OBSERVERS:
            observer.on_disk_begin(tensor, is_write_to_disk=is_write_to_disk, handle=self._number)
        return 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("get_"):
            return lambda *_: {"get_alignment": 512, "get_block_size": 1 << 20}.get(name, 1)
        raise AttributeError(name)


def _extend_file(path: str, size: int) -> None:
    """Make the file at least so long, without blocks: `state_bytes` counts NVMe by the sizes of files."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if os.fstat(handle).st_size < size:
            os.ftruncate(handle, size)
    finally:
        os.close(handle)
