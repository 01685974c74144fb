"""What NVMe swapping moves and how long it blocks: counted at DeepSpeed's own file handles, whoever uses them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

_BLOCKING = ("wait", "sync_pread", "sync_pwrite", "read", "write")
_READING = ("sync_pread", "async_pread", "pread", "read")
_WRITING = ("sync_pwrite", "async_pwrite", "pwrite", "write")


@dataclass(slots=True)
class Swapped:
    """Bytes and blocked seconds of this process so far."""

    read: int = 0
    written: int = 0
    seconds: float = 0.0


SWAPPED = Swapped()


def uses_nvme(ds_config: dict[str, Any]) -> list[Path]:
    """Folders that the JSON swaps to."""
    zero = ds_config.get("zero_optimization") or {}
    places = [zero.get(key) or {} for key in ("offload_optimizer", "offload_param")]
    return list(dict.fromkeys(Path(p["nvme_path"]) for p in places if p.get("device") == "nvme" and p.get("nvme_path")))


def watch_swapping(ds_config: dict[str, Any]) -> None:
    """Count from now on, where this run swaps at all: before the engine is built, which opens the handles."""
    if not uses_nvme(ds_config):
        return
    from deepspeed.ops.op_builder import AsyncIOBuilder

    op = AsyncIOBuilder().load(verbose=False)
    if not hasattr(op.aio_handle, "counted_by_harness"):
        op.aio_handle = counted(op.aio_handle)


def counted(handle: type) -> type:
    """A class of handles that counts what the given one does."""
    methods: dict[str, Any] = {"counted_by_harness": True}
    for name in {*_BLOCKING, *_READING, *_WRITING}:
        method = getattr(handle, name, None)
        if method is not None:
            methods[name] = _counted(method, name)
    return type("CountedHandle", (handle,), methods)


def _counted(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    blocks, reads, writes = name in _BLOCKING, name in _READING, name in _WRITING

    @wraps(method)
    def call(self: Any, *args: Any, **kw: Any) -> Any:
        moved = args[0].nbytes if (reads or writes) and args and hasattr(args[0], "nbytes") else 0
        SWAPPED.read += moved if reads else 0
        SWAPPED.written += moved if writes else 0
        began = time.perf_counter()
        try:
            return method(self, *args, **kw)
        finally:
            SWAPPED.seconds += time.perf_counter() - began if blocks else 0.0

    return call


def bytes_in(folders: list[Path]) -> int:
    """Bytes on disk of the files below these folders; what vanishes meanwhile counts as nothing."""
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                total += path.lstat().st_blocks * 512
            except OSError:
                continue
    return total
