"""All ranks add up tensors together, and rank 0 says how fast: one line `HARNESS-ALLREDUCE {...}` on stdout.

Started by the `deepspeed` launcher for `harness preflight --allreduce`. torch alone; it trains nothing, writes no file
and ends by itself after `--seconds`, whatever hangs.
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

MARK = "HARNESS-ALLREDUCE "
SIZES = (2**20, 2**24, 2**27)
"""Bytes of fp32: latency, and what the buckets of ZeRO are like."""
_EACH_SECONDS = 2.0
_MOST_ROUNDS = 20


def main() -> int:
    """Exit codes: 0 every sum was right, 1 one was not, 124 it hung."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--local_rank", type=int, default=0)
    asked = parser.parse_args()
    # A collective that hangs holds the interpreter's lock free, so a thread can still end the process.
    watch = threading.Timer(asked.seconds, lambda: os._exit(124))
    watch.daemon = True
    watch.start()
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", asked.local_rank))) if on_gpu else torch.device("cpu")
    )
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=asked.seconds))
    rank, world = dist.get_rank(), dist.get_world_size()
    hosts: list[str] = [""] * world
    dist.all_gather_object(hosts, socket.gethostname())
    rows, right = [], True
    for size in SIZES:
        row, sums = measure(size, device)
        rows.append(row)
        right = right and sums
    if rank == 0:
        body = {"world": world, "backend": dist.get_backend(), "right": right, "hosts": hosts, "sizes": rows}
        # One write, so that the lines of other ranks cannot come between.
        os.write(1, f"{MARK}{json.dumps(body)}\n".encode())
    dist.destroy_process_group()
    return 0 if right else 1


def measure(size: int, device: object) -> tuple[dict[str, float], bool]:
    """One size: bytes, seconds a round (the mean), bus bandwidth in bytes a second; and whether every sum was right.

    Bus bandwidth is nccl-tests' (doc/PERFORMANCE.md): bytes / seconds x 2 (n - 1) / n, what the slowest link carries.
    """
    import torch
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.empty(size // 4, dtype=torch.float32, device=device)
    expected = float(world * (world + 1) // 2)

    def round_() -> float:
        tensor.fill_(rank + 1)
        wait(tensor)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        wait(tensor)
        return time.perf_counter() - began

    warm = round_()
    right = bool((tensor == expected).all())
    rounds = torch.tensor([max(2, min(_MOST_ROUNDS, int(_EACH_SECONDS / max(warm, 1e-9))))], device=device)
    dist.broadcast(rounds, 0)  # all have to take as many
    taken = [round_() for _ in range(int(rounds.item()))]
    right = right and bool((tensor == expected).all())
    verdict = torch.tensor([int(right)], device=device)
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    seconds = sum(taken) / len(taken)
    return {"bytes": size, "seconds": seconds, "bus": size / seconds * 2 * (world - 1) / world}, bool(verdict.item())


def wait(tensor: object) -> None:
    """Until what was asked of the device is done."""
    import torch

    if getattr(tensor, "is_cuda", False):
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
