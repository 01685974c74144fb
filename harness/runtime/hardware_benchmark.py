# SPDX-License-Identifier: Apache-2.0
"""Measures this machine: host memory, CPU Adam, disks through DeepSpeed's aio, GPU copies and matrix products.

A program (`python -m harness.runtime.hardware_benchmark [FOLDER]`) that prints a JSON object a measurement, as soon as
it is made; it decides nothing. Its file has no name, so that no end of the program leaves one behind.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from harness.hostinfo.torch_extensions import find_planted_ops, set_torch_extensions_dir, torch_extensions_dir

ELEMENTS = 32_000_000
DISK_BYTES = 256 << 20
MATRIX = 8192
SHARES: Mapping[str, float] = {"host_memory": 4.0, "cpu_adam": 4.0, "disk": 6.0, "gpu": 6.0}
"""Seconds of each measurement; one that takes longer ends after what it has begun."""
_REPEATS = 5
_FIRST_BYTES = 16 << 20
"""Bytes that are written first: by their time a slow disk gets fewer."""
_CACHES = Path("/sys/devices/system/cpu")


def time_fastest(work: Callable[[], object], repeats: int = _REPEATS, limit: float = math.inf) -> float:
    """Seconds of the fastest of some repetitions, after one that warms up. After `limit` seconds there is no other; the
    warm-up counts where it took all of them.
    """
    start = last = time.perf_counter()
    times: list[float] = []
    for _ in range(1 + repeats):
        work()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - start > limit:
            break
    return min(times[1:] or times)


def last_level_cache(root: Path = _CACHES) -> int:
    """Bytes of the largest cache of each group of cores, summed over the host; 0 where the kernel does not say."""
    groups: dict[tuple[str, str], int] = {}
    for folder in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            level, cores = ((folder / name).read_text().strip() for name in ("level", "shared_cpu_list"))
            groups[level, cores] = int((folder / "size").read_text().strip().removesuffix("K")) << 10
    last = max((level for level, _ in groups), default="")
    return sum(size for (level, _), size in groups.items() if level == last)


def count_stream_elements(cache: int, free: int) -> int:
    """fp32 elements of each of three vectors: at least four times `cache` bytes, unless that is above an eighth of the
    `free` bytes of memory.
    """
    return max(1, min(max(ELEMENTS, cache), free // 32))


def bench_host_memory() -> float:
    """Bytes a second of an addition of two vectors into a third, on all cores: 12 bytes an element."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    elements = count_stream_elements(last_level_cache(), free)
    a, b, c = (torch.ones(elements) for _ in range(3))
    return 12 * elements / time_fastest(lambda: torch.add(a, b, out=c), limit=SHARES["host_memory"])


def require_built(op: str) -> None:
    """Raises RuntimeError where DeepSpeed would compile this op, for a measurement compiles nothing, and where another
    user may have written it."""
    from deepspeed.git_version_info import installed_ops

    if not installed_ops.get(op) and not (torch_extensions_dir() / op / f"{op}.so").is_file():
        raise RuntimeError(f"{op} is not built; a `harness launch` of a spec that needs it builds it")
    planted = find_planted_ops(torch_extensions_dir(), [op])
    if planted is not None:
        raise RuntimeError(f"{op} is not loaded: {planted}")


def bench_cpu_adam() -> float:
    """Parameters a second of DeepSpeed's own kernel, fp32; 28 bytes move for each."""
    require_built("cpu_adam")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    weights = torch.nn.Parameter(torch.ones(ELEMENTS))
    weights.grad = torch.ones(ELEMENTS)
    optimizer = DeepSpeedCPUAdam([weights])
    return ELEMENTS / time_fastest(optimizer.step, limit=SHARES["cpu_adam"])


def bench_disk(folder: Path) -> dict[str, float | str]:
    """Bytes a second read and written, past the page cache, and how: by one aio handle with the settings that the
    harness recommends, which opens files with O_DIRECT; on a file system without it by this process.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        path = f"/proc/self/fd/{file.fileno()}"
        if not has_direct_io(path):
            return _bench_cached_disk(file.fileno())
        require_built("async_io")
        return _bench_aio(path, file.fileno())


def has_direct_io(path: str) -> bool:
    """Does the file system of this file take O_DIRECT?"""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return True


def _bench_aio(path: str, file: int) -> dict[str, float | str]:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = AsyncIOBuilder().load(verbose=False).aio_handle(1 << 20, 128, False, True, 1)
    limit = SHARES["disk"] / 2

    def new_buffer(size: int) -> torch.Tensor:
        buffer: torch.Tensor = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        return buffer.fill_(7)

    first = new_buffer(_FIRST_BYTES)
    size = count_disk_bytes(time_fastest(lambda: handle.sync_pwrite(first, path, 0), 0))
    handle.free_cpu_locked_tensor(first)
    buffer = new_buffer(size)
    write = time_fastest(lambda: handle.sync_pwrite(buffer, path, 0), 3, limit)
    _drop_pages(file)  # some file systems take O_DIRECT and keep the pages
    read = time_fastest(lambda: handle.sync_pread(buffer, path, 0), 3, limit)
    handle.free_cpu_locked_tensor(buffer)
    return {"disk_read": size / read, "disk_write": size / write, "disk_way": "by DeepSpeed's aio, O_DIRECT"}


def count_disk_bytes(first: float) -> int:
    """Bytes to write and read, a multiple of the first ones, which took `first` seconds: a pass takes a sixth of the
    disk's share.
    """
    return _FIRST_BYTES * max(1, min(DISK_BYTES // _FIRST_BYTES, int(SHARES["disk"] / 6 / first)))


def _bench_cached_disk(file: int) -> dict[str, float | str]:
    """Written with fsync, read once its pages are dropped. What is read from memory all the same is no rate."""
    block = bytes(_FIRST_BYTES)

    def write_blocks(count: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        for _ in range(count):
            view = memoryview(block)
            while view:
                view = view[os.write(file, view) :]
        os.fsync(file)

    def read_blocks() -> None:
        _drop_pages(file)
        os.lseek(file, 0, os.SEEK_SET)
        while os.read(file, _FIRST_BYTES):
            pass

    limit = SHARES["disk"] / 2
    size = count_disk_bytes(time_fastest(lambda: write_blocks(1), 0))
    write = time_fastest(lambda: write_blocks(size // _FIRST_BYTES), 3, limit)
    read = time_fastest(read_blocks, 3, limit)
    way = "no O_DIRECT on this file system: one thread, fsync, page cache dropped"
    return {"disk_read": size / read, "disk_write": size / write, "disk_way": way}


def _drop_pages(file: int) -> None:
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


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

        return time_fastest(run, limit=SHARES["gpu"] / 3)

    return {
        "gpu_up": host.numel() / timed(lambda: device.copy_(host, non_blocking=True)),
        "gpu_down": host.numel() / timed(lambda: host.copy_(device, non_blocking=True)),
        "gpu_flops_16": 2 * MATRIX**3 / timed(lambda: a @ a),
    }


def main() -> None:
    """argv: the folder whose disk is measured; none leaves the disk out. A line each: `name`, `seconds`, and `figures`
    or `failed`. The first line says that the program has started.
    """
    set_torch_extensions_dir(os.environ)
    output = sys.stdout

    def write_line(line: dict[str, Any]) -> None:
        output.write(json.dumps(line) + "\n")
        output.flush()

    def measure(name: str, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        line: dict[str, Any] = {"name": name}
        try:
            with contextlib.redirect_stdout(sys.stderr):
                value = work()
            line["figures"] = value if isinstance(value, dict) else {name: value}
        except Exception as error:  # a missing op or library is a fact about this machine, not our fault
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            line["failed"] = f"{type(error).__name__}: {first_line}"
        write_line({**line, "seconds": round(time.perf_counter() - start, 3)})

    with contextlib.suppress(ImportError), contextlib.redirect_stdout(sys.stderr):
        import deepspeed  # noqa: F401  (seconds, which are no measurement's)
    write_line({"name": "start"})
    signal.setitimer(signal.ITIMER_REAL, sum(SHARES.values()))  # its signal ends even a call that hangs
    measure("host_memory", bench_host_memory)
    measure("cpu_adam", bench_cpu_adam)
    if len(sys.argv) > 1:
        measure("disk", lambda: bench_disk(Path(sys.argv[1])))
    measure("gpu", bench_gpu)


if __name__ == "__main__":
    main()
