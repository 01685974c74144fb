# SPDX-License-Identifier: Apache-2.0
"""One rank of an all-reduce over tensors of several sizes; rank 0 prints the times: one line `HARNESS-ALLREDUCE {...}`.

Started by the `deepspeed` launcher for `harness preflight --allreduce`. It needs torch alone, trains nothing, writes no
file and ends by itself after `--seconds`, whatever hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MARK = "HARNESS-ALLREDUCE "
SIZES = (2**20, 2**24, 2**27)
"""Bytes of fp32: the first shows latency, the others are like the buckets of ZeRO."""
_SECONDS_PER_SIZE = 2.0
_MAX_ROUNDS = 20
_NAME_BYTES = 256
"""Linux allows 64 for a host name."""


def main() -> int:
    """Run the all-reduces. Exit codes: 0 every sum was right, 1 one was not, 124 it hung."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--local_rank", type=int, default=0)
    arguments = parser.parse_args()
    # A collective that hangs releases the interpreter's lock, so a thread can still end the process.
    timer = threading.Timer(arguments.seconds, lambda: os._exit(124))
    timer.daemon = True
    timer.start()
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", arguments.local_rank))) if on_gpu else torch.device("cpu")
    )
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=arguments.seconds))
    rank, world = dist.get_rank(), dist.get_world_size()
    hosts = gather_host_names(device)
    timings, right = [], True
    for size in SIZES:
        timing, is_right = measure_all_reduce(size, device)
        timings.append(timing)
        right = right and is_right
    if rank == 0:
        body = {"world": world, "backend": dist.get_backend(), "right": right, "hosts": hosts, "sizes": timings}
        # One write, so that the lines of other ranks cannot come between.
        os.write(1, f"{MARK}{json.dumps(body)}\n".encode())
    dist.destroy_process_group()
    return 0 if right else 1


def gather_host_names(device: torch.device) -> list[str]:
    """The host name of every rank, in rank order, as bytes: torch's `all_gather_object` would unpickle the answers."""
    import torch
    import torch.distributed as dist

    name = socket.gethostname().encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
    row = torch.frombuffer(bytearray(name), dtype=torch.uint8).to(device)
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    return [bytes(r.cpu().tolist()).rstrip(b"\0").decode(errors="replace") for r in rows]


def measure_all_reduce(size: int, device: torch.device) -> tuple[dict[str, float], bool]:
    """All-reduces of one size: bytes, mean seconds, bus bandwidth in bytes a second; and whether all sums are right.

    Bus bandwidth is nccl-tests' (doc/PERFORMANCE.md): bytes / seconds x 2 (n - 1) / n, what the slowest link carries.
    """
    import torch
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.empty(size // 4, dtype=torch.float32, device=device)
    expected = float(world * (world + 1) // 2)

    def time_round() -> float:
        tensor.fill_(rank + 1)
        synchronize(tensor)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        synchronize(tensor)
        return time.perf_counter() - start

    first = time_round()
    right = bool((tensor == expected).all())
    rounds = torch.tensor([max(2, min(_MAX_ROUNDS, int(_SECONDS_PER_SIZE / max(first, 1e-9))))], device=device)
    dist.broadcast(rounds, 0)  # every rank must run as many
    times = [time_round() for _ in range(int(rounds.item()))]
    right = right and bool((tensor == expected).all())
    verdict = torch.tensor([int(right)], device=device)
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    seconds = sum(times) / len(times)
    return {"bytes": size, "seconds": seconds, "bus": size / seconds * 2 * (world - 1) / world}, bool(verdict.item())


def synchronize(tensor: torch.Tensor) -> None:
    """Wait until the device of this tensor has finished its work."""
    import torch

    if getattr(tensor, "is_cuda", False):
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
