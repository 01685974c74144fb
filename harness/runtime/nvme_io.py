# SPDX-License-Identifier: Apache-2.0
"""Bytes and blocking time of NVMe swapping, counted at DeepSpeed's own file handles."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

_BLOCKING_METHODS = ("wait", "sync_pread", "sync_pwrite", "read", "write")
_READ_METHODS = ("sync_pread", "async_pread", "pread", "read")
_WRITE_METHODS = ("sync_pwrite", "async_pwrite", "pwrite", "write")


@dataclass(slots=True)
class NvmeCounters:
    """Bytes and blocked seconds of this process since its start."""

    bytes_read: int = 0
    bytes_written: int = 0
    blocked_seconds: float = 0.0


NVME_COUNTERS = NvmeCounters()


def find_nvme_dirs(ds_config: dict[str, Any]) -> list[Path]:
    """The folders of the JSON's NVMe offload."""
    zero = ds_config.get("zero_optimization") or {}
    sections = [zero.get(key) or {} for key in ("offload_optimizer", "offload_param")]
    return list(
        dict.fromkeys(Path(p["nvme_path"]) for p in sections if p.get("device") == "nvme" and p.get("nvme_path"))
    )


def counting_handle_class(handle: type) -> type:
    """A subclass of `handle` that counts bytes and blocked seconds."""
    methods: dict[str, Any] = {"counted_by_harness": True}
    for name in {*_BLOCKING_METHODS, *_READ_METHODS, *_WRITE_METHODS}:
        method = getattr(handle, name, None)
        if method is not None:
            methods[name] = _counting_method(method, name)
    return type("CountedHandle", (handle,), methods)


def _counting_method(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    is_blocking, is_read, is_write = name in _BLOCKING_METHODS, name in _READ_METHODS, name in _WRITE_METHODS

    @wraps(method)
    def call(self: Any, *args: Any, **kw: Any) -> Any:
        num_bytes = args[0].nbytes if (is_read or is_write) and args and hasattr(args[0], "nbytes") else 0
        NVME_COUNTERS.bytes_read += num_bytes if is_read else 0
        NVME_COUNTERS.bytes_written += num_bytes if is_write else 0
        start = time.perf_counter()
        try:
            return method(self, *args, **kw)
        finally:
            NVME_COUNTERS.blocked_seconds += time.perf_counter() - start if is_blocking else 0.0

    return call


def disk_usage(folders: list[Path]) -> int:
    """Bytes on disk of the files below these folders. Files that vanish meanwhile do not count."""
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                total += path.lstat().st_blocks * 512
            except OSError:
                continue
    return total
