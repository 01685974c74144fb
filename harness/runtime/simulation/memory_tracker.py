# SPDX-License-Identifier: Apache-2.0
"""Bytes of every live storage by device and by the line of code that made it, with the peak of each phase.

Sizes are those that torch's allocators round to: multiples of 512 bytes on the device (CUDACachingAllocator.cpp,
kMinBlockSize), powers of two for page-locked memory (CachingHostAllocator.h).
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import FrameType
from typing import NamedTuple

import torch

ROUNDING = "rounding of page-locked memory"
"""The line that holds what the allocator adds to page-locked blocks."""
_BLOCK = 512
_OWN_FRAMES = (
    "/torch/",
    "/harness/runtime/simulation/",
    "deepspeed/utils/nvtx.py",
    "contextlib.py",
    "weakref.py",
    "typing_extensions.py",
)
_WRITER = "/simulated_save.py"
"""Moves tensors as `torch.save` does, whose line it stands for."""
_ENGINE_FRAMES = ("deepspeed/runtime", "deepspeed/ops", "/harness/")


@dataclass(slots=True)
class DevicePeak:
    """The most bytes of one device in one phase, and who held them: bytes by line of code."""

    bytes: int = 0
    holders: dict[str, int] = field(default_factory=dict)
    is_stale: bool = False
    """Was the peak raised after `holders` were copied?"""


class _Entry(NamedTuple):
    """A live storage: `size` includes `rounding`."""

    device: str
    line: str
    size: int
    rounding: int


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """The allocation that found no room: its phase, device, bytes and line, and the bytes that were taken, by line."""

    phase: str
    device: str
    bytes: int
    line: str
    taken: int
    holders: dict[str, int]


def rounded_size(num_bytes: int, device: str, *, pinned: bool) -> int:
    """The bytes that torch's allocator takes for so many."""
    if pinned:
        return 1 << (num_bytes - 1).bit_length()
    return -(-num_bytes // _BLOCK) * _BLOCK if device == "cuda" else num_bytes


class MemoryTracker:
    """Live storages. `capacity` in bytes by device: `cuda` raises torch's own error, as the device would; `cpu` records
    the first allocation that exceeds it and goes on, since Linux gives the pages out and ends the process later.
    """

    def __init__(self, capacity: dict[str, int] | None = None) -> None:
        self.capacity = dict(capacity or {})
        self.phase = "start"
        self.bytes_now: Counter[str] = Counter()
        self.peaks: dict[str, dict[str, DevicePeak]] = defaultdict(lambda: defaultdict(DevicePeak))
        self.failed: FailedAllocation | None = None
        self.host_exceeded: FailedAllocation | None = None
        self.pinned: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.mapped: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        """Views of files: pages of the system, and no memory of the process."""
        self.on_freed: Callable[[int], None] = lambda _: None
        self._is_mapping = False
        self._holders: dict[str, Counter[str]] = defaultdict(Counter)
        self._live: dict[int, _Entry] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._lock = threading.RLock()

    def enter_phase(self, phase: str) -> None:
        """Begin or go on with a phase: what is live now counts towards its peak."""
        with self._lock:
            self._copy_holders()
            self.phase = phase
            for device in list(self.bytes_now):
                self._raise_peak(device)

    def add(self, storage: torch.UntypedStorage, device: str, operator: str, *, pinned: bool = False) -> None:
        """Count a storage until it is freed. Where no Python called, its line is the operator's. Raises
        torch.OutOfMemoryError where the device has no room for it."""
        key = storage._cdata
        with self._lock:
            if key in self._live or device == "meta" or storage in self.mapped:
                return
            if self._is_mapping:
                self.mapped.add(storage)
                return
            size = rounded_size(storage.nbytes(), device, pinned=pinned) if storage.nbytes() else 0
            if size == 0:
                return
            entry = _Entry(
                device, calling_line() or f"autograd: {operator}", size, size - storage.nbytes() if pinned else 0
            )
            self._check_room(entry)
            self._live[key] = entry
            self._references[key] = weakref.ref(storage, partial(self._remove_dead, key))
            self._grow(entry)

    @contextmanager
    def mapping_files(self) -> Iterator[None]:
        """In this context tensors are made of files: none counts."""
        self._is_mapping = True
        try:
            yield
        finally:
            self._is_mapping = False

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Count a storage of another size, as `resize_` leaves it."""
        with self._lock:
            old = self._live.get(storage._cdata)
            if old is not None:
                self._shrink(old)
                num_bytes, pinned = storage.nbytes(), storage in self.pinned
                size = rounded_size(num_bytes, old.device, pinned=pinned) if num_bytes else 0
                new = _Entry(old.device, old.line, size, size - num_bytes if pinned else 0)
                self._check_room(new)
                self._live[storage._cdata] = new
                self._grow(new)
                if num_bytes == 0:
                    self.on_freed(storage._cdata)

    def finish(self) -> None:
        """Complete the holders of all peaks."""
        with self._lock:
            self._copy_holders()

    def _remove_dead(self, key: int, _: object) -> None:
        self._remove(key)

    def _remove(self, key: int) -> None:
        with self._lock:
            entry = self._live.pop(key, None)
            self._references.pop(key, None)
            if entry is not None:
                self._shrink(entry)
        self.on_freed(key)

    def _grow(self, entry: _Entry) -> None:
        holders = self._holders[entry.device]
        holders[entry.line] += entry.size - entry.rounding
        holders[ROUNDING] += entry.rounding
        self.bytes_now[entry.device] += entry.size
        self._raise_peak(entry.device)

    def _shrink(self, entry: _Entry) -> None:
        self._copy_holders(entry.device)
        holders = self._holders[entry.device]
        holders[entry.line] -= entry.size - entry.rounding
        holders[ROUNDING] -= entry.rounding
        self.bytes_now[entry.device] -= entry.size

    def _raise_peak(self, device: str) -> None:
        peak = self.peaks[self.phase][device]
        if self.bytes_now[device] > peak.bytes:
            peak.bytes, peak.is_stale = self.bytes_now[device], True

    def _copy_holders(self, device: str | None = None) -> None:
        """Copy who holds the memory at a peak, at the latest moment before something is freed."""
        for name, peak in self.peaks[self.phase].items():
            if peak.is_stale and device in (None, name):
                peak.holders, peak.is_stale = {k: v for k, v in self._holders[name].items() if v}, False

    def _check_room(self, entry: _Entry) -> None:
        device, size = entry.device, entry.size
        limit = self.capacity.get(device)
        if limit is None or self.bytes_now[device] + size <= limit:
            return
        holders = {line: held for line, held in self._holders[device].items() if held}
        failed = FailedAllocation(self.phase, device, size, entry.line, self.bytes_now[device], holders)
        if device == "cuda":
            self.failed = failed
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU 0 has a total capacity of"
                f" {limit / 2**30:.2f} GiB of which {(limit - failed.taken) / 2**20:.2f} MiB is free."
            )
        self.host_exceeded = self.host_exceeded or failed


def calling_line() -> str:
    """`file:line function` of the caller outside torch and the simulation; with the line of DeepSpeed or the harness
    first where a library between them made the allocation; empty in a thread of autograd.
    """
    frame: FrameType | None = sys._getframe(2)
    innermost = ""
    while frame is not None:
        kind, short = _describe_file(frame.f_code.co_filename)
        if kind != "own":
            here = f"{short}:{frame.f_lineno} {frame.f_code.co_name}"
            innermost = innermost or here
            if kind == "engine":
                return here if here == innermost else f"{here} < {innermost}"
        frame = frame.f_back
    return innermost


@cache
def _describe_file(path: str) -> tuple[str, str]:
    """Whose file it is (`own`: torch's or the simulation's; `engine`; `other`), and its path below its package."""
    if any(part in path for part in _OWN_FRAMES) and not path.endswith(_WRITER):
        return "own", path
    head, _, tail = path.rpartition("site-packages/")
    _, found, rest = path.rpartition("/harness/")
    short = tail if head else f"harness/{rest}" if found else path.rpartition("/")[2]
    return ("engine" if any(part in path for part in _ENGINE_FRAMES) else "other"), short
