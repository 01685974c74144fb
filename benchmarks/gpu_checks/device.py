# SPDX-License-Identifier: Apache-2.0
"""The device of a rank: which one it must be, its streams, clock and memory, and what stands in for them on a CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.gpu_checks.check import Task

DELAY_SECONDS = 0.02
CYCLES_PER_SECOND = 1.7e9
"""About the clock of current data-centre GPUs; a delay need not be exact."""


class WrongDevice(Exception):
    """The rank computes on another kind of device than this program is about."""


def require_device(rehearse: bool) -> str:
    """The kind of device of this process. Raises WrongDevice where it is the CPU and this is no rehearsal."""
    import torch
    from deepspeed.accelerator import get_accelerator

    kind = str(get_accelerator().device_name()).split(":")[0]
    wanted = "cpu" if rehearse else "cuda"
    if kind != wanted or (wanted == "cuda" and not torch.cuda.is_available()):
        raise WrongDevice(f"this rank computes on `{kind}`, and should compute on `{wanted}`")
    return kind


def skip_op_probes() -> None:
    """For rehearsals: DeepSpeed starts no compiler to ask which ops could be compiled, and takes no 66 MiB a rank of
    shared memory for its all-reduce on a CPU, which it would leave behind.
    """
    import deepspeed
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    known = {**dict.fromkeys(ALL_OPS, True), "deepspeed_shm_comm": False, "deepspeed_not_implemented": False}
    deepspeed.ops.__compatible_ops__ = known


def join_ranks(task: Task) -> tuple[Any, str]:
    """The harness's process group and what carries its tensors: `gloo` or `nccl`.

    Several ranks share one GPU. With gloo its tensors go over the host.
    """
    import torch
    from deepspeed.accelerator import get_accelerator

    from harness.runtime.distributed import init_process_group

    if task.rehearse or task.ranks == 1:
        return init_process_group(), "gloo" if task.rehearse else "nccl"
    if task.wire == "nccl":
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    else:
        get_accelerator()._communication_backend_name = "gloo"
        torch.distributed.init_process_group("gloo")  # DeepSpeed takes a group that is there
    return init_process_group(), task.wire


def make_deterministic() -> None:
    """Leave out kernels of a GPU whose sums have no fixed order. Memory that is not filled stays as it is."""
    import torch

    if torch.cuda.is_available():
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


def synchronize() -> None:
    """Wait for all work of the device."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().synchronize()


def delay_stream() -> None:
    """Hold back the current stream; on a CPU, which has none, this thread for a moment."""
    import torch

    if torch.cuda.is_available():
        torch.cuda._sleep(int(DELAY_SECONDS * CYCLES_PER_SECOND))
    else:
        time.sleep(1e-4)


def free_memory() -> int:
    """Give back what earlier trainings of this process left, and forget their peak. Returns the bytes that stay."""
    import gc

    import torch

    gc.collect()  # an engine is a cycle of references
    if not torch.cuda.is_available():
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def time_work(work: Callable[[], object], repeats: int = 3) -> float:
    """Seconds of the fastest of some repetitions, after one that warms up; the device is idle before and after."""
    times = []
    for _ in range(repeats + 1):
        synchronize()
        start = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


@contextmanager
def watch_peak() -> Iterator[dict[str, int]]:
    """Bytes that are allocated at most while this lasts, and were not there before. On a GPU its allocator says it, on
    a CPU the storages are followed.
    """
    import torch

    if not torch.cuda.is_available():
        from benchmarks.counting import peak

        with peak() as held:
            yield held
        return
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = {"peak": 0}
    yield found
    torch.cuda.synchronize()
    found["peak"] = torch.cuda.max_memory_allocated() - before
