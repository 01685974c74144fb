# SPDX-License-Identifier: Apache-2.0
"""`watch_costs.py OUT.json WIDTH LAYERS STEPS`, on each rank: what a watched engine does beyond another one.

Both take their steps in turn. Rank 0 writes `seconds` and `cpu_seconds` of each step (without, with a watch), `setup_seconds`,
and `calls`: step -> calls that wait for a device or for other ranks, without and with a watch, where the numbers differ.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

import harness

TENSOR_CALLS = ("item", "cpu", "tolist", "numpy", "__float__", "__int__", "__bool__", "nonzero")
GROUP_CALLS = ("all_reduce", "all_gather", "broadcast", "barrier", "all_gather_into_tensor")


def build(width: int, layers: int) -> Any:
    torch.manual_seed(0)
    blocks = [m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    model = torch.nn.Sequential(*blocks)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "torch_adam": True, "weight_decay": 0.0}},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 1},
    }
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def take_step(engine: Any, rows: torch.Tensor) -> None:
    for _ in range(2):
        engine.backward((engine(rows) - rows).square().mean())
        engine.step()


@contextlib.contextmanager
def counted(calls: Counter[str]) -> Iterator[None]:
    """Count calls that wait, whoever makes them."""
    owners = [(torch.Tensor, n) for n in TENSOR_CALLS] + [(dist, n) for n in GROUP_CALLS]
    owners += [(type(get_accelerator()), "synchronize")]
    earlier = [(owner, name, getattr(owner, name)) for owner, name in owners]

    def replacement(name: str, call: Any) -> Any:
        def count(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return call(*args, **kwargs)

        return count

    for owner, name, call in earlier:
        setattr(owner, name, replacement(name, call))
    try:
        yield
    finally:
        for owner, name, call in earlier:
            setattr(owner, name, call)


def compare(width: int, layers: int, steps: int, output: Path, *, counts: bool) -> dict[str, Any]:
    """Two engines, one of them watched, step by step."""
    rows = torch.randn(2, width, generator=torch.Generator().manual_seed(dist.get_rank()))
    plain, watched = build(width, layers), build(width, layers)
    take_step(plain, rows)  # lazy imports
    take_step(plain, rows)
    begin = time.perf_counter()
    watch = harness.watch(watched, output=output)
    report: dict[str, Any] = {
        "setup_seconds": time.perf_counter() - begin,
        "seconds": [],
        "cpu_seconds": [],
        "calls": {},
    }
    for step in range(1, steps + 1):
        times, cpu_times, calls = [], [], []
        for engine in (plain, watched):
            calls.append(Counter[str]())
            dist.barrier()
            begin, cpu_begin = time.perf_counter(), time.process_time()
            with counted(calls[-1]) if counts else contextlib.nullcontext():
                take_step(engine, rows)
            cpu_times.append(time.process_time() - cpu_begin)
            times.append(time.perf_counter() - begin)
        report["seconds"].append(times)
        report["cpu_seconds"].append(cpu_times)
        if calls[0] != calls[1]:
            report["calls"][step] = calls
    report["is_active"], report["witness_steps"] = watch.is_active, [r.step for r in watch.witness.results]
    watch.close()
    plain.destroy()
    watched.destroy()
    return report


def main() -> None:
    out, width, layers, steps = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.set_num_threads(1)
    deepspeed.init_distributed()
    output = out.parent / "engine_checks.json"
    times = compare(width, layers, steps, output, counts=False)
    gc.collect()  # the end of an engine, which synchronizes, is no call of a step
    gc.disable()
    report = times | {"calls": compare(width, layers, steps, output, counts=True)["calls"]}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(report), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
