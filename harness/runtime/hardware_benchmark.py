# SPDX-License-Identifier: Apache-2.0
"""Measures this machine: host memory, CPU Adam, disks through DeepSpeed's aio, GPU copies and matrix products.

A program (`python -m harness.runtime.hardware_benchmark [FOLDER]`) that prints one JSON object; it decides nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.hostinfo.torch_extensions import set_torch_extensions_dir

ELEMENTS = 32_000_000
DISK_BYTES = 256 << 20
MATRIX = 8192
_REPEATS = 5


def time_fastest(work: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Seconds of the fastest of some repetitions, after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def bench_host_memory() -> float:
    """Bytes a second of an addition of two vectors into a third: 12 bytes an element."""
    a, b, c = (torch.ones(ELEMENTS) for _ in range(3))
    return 12 * ELEMENTS / time_fastest(lambda: torch.add(a, b, out=c))


def bench_cpu_adam() -> float:
    """Parameters a second of DeepSpeed's own kernel, fp32; 28 bytes move for each."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    weights = torch.nn.Parameter(torch.ones(ELEMENTS))
    weights.grad = torch.ones(ELEMENTS)
    optimizer = DeepSpeedCPUAdam([weights])
    return ELEMENTS / time_fastest(optimizer.step)


def bench_disk(folder: Path) -> tuple[float, float]:
    """Bytes a second read and written by one aio handle with the settings that the harness recommends."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = AsyncIOBuilder().load(verbose=False).aio_handle(1 << 20, 128, False, True, 1)
    buffer = handle.new_cpu_locked_tensor(DISK_BYTES, torch.empty(0, dtype=torch.uint8))
    buffer.fill_(7)
    file = folder / ".harness-measure.bin"
    try:
        write = time_fastest(lambda: handle.sync_pwrite(buffer, str(file), 0), 3)
        read = time_fastest(lambda: handle.sync_pread(buffer, str(file), 0), 3)
    finally:
        file.unlink(missing_ok=True)
        handle.free_cpu_locked_tensor(buffer)
    return DISK_BYTES / read, DISK_BYTES / write


def bench_gpu() -> dict[str, float]:
    """Page-locked copies in both directions, and a product of bf16 matrices, in bytes and FLOP a second."""
    if not torch.cuda.is_available():
        return {}
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    a = torch.ones(MATRIX, MATRIX, dtype=torch.bfloat16, device="cuda")

    def timed(work: Callable[[], object]) -> float:
        def run() -> None:
            work()
            torch.cuda.synchronize()

        return time_fastest(run)

    return {
        "gpu_up": host.numel() / timed(lambda: device.copy_(host, non_blocking=True)),
        "gpu_down": host.numel() / timed(lambda: host.copy_(device, non_blocking=True)),
        "gpu_flops_16": 2 * MATRIX**3 / timed(lambda: a @ a),
    }


def main() -> None:
    """argv: the folder whose disk is measured; none leaves the disk out. Failures are in `failed`."""
    result: dict[str, Any] = {"failed": {}}
    set_torch_extensions_dir(os.environ)

    def measure(name: str, work: Callable[[], object]) -> None:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                value = work()
        except Exception as error:  # a missing op or library is a fact about this machine, not our fault
            result["failed"][name] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
            return
        result.update(value if isinstance(value, dict) else {name: value})

    measure("host_memory", bench_host_memory)
    measure("cpu_adam", bench_cpu_adam)
    if len(sys.argv) > 1:
        measure("disk", lambda: dict(zip(("disk_read", "disk_write"), bench_disk(Path(sys.argv[1])), strict=True)))
    measure("gpu", bench_gpu)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
