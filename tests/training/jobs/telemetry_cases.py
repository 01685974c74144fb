# SPDX-License-Identifier: Apache-2.0
"""The loop, several runs in the same ranks, with a rank that is slow in one way or another.

`telemetry_cases.py JOBS.json`, where a job is {"run": DIR, "late": are lines written a step late as on a device, "slow": null or {"rank", "kind", "seconds"}, "driver"}; kinds:
`data` sleeps while data is drawn, `forward` in the forward, `backward` in the backward, `optimizer` before the update, `disk`
in each wait for NVMe. "driver": the folder of a made-up NVML, by which the GPU of rank 1 is throttled, and that
of rank 0 has few lanes and errors of its memory, or null. Rank 0 writes DIR/outcome.json: {"wall": seconds of each step by a clock outside, "memory": [resident
bytes by the harness, at once afterwards by psutil] each time that it looked, "swapped": bytes of this rank's swap files,
"faults": [page faults a step of each rank at each comparison], "error": text or null}.
"""

import contextlib
import ctypes
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.telemetry import gpu_watch, memory_usage, rank_stats
from harness.runtime.telemetry.run_telemetry import Telemetry
from harness.runtime.telemetry.stragglers import StragglerDetector
from harness.runtime.train import train
from harness.runtime.train_context import TrainContext, build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels

LOADED_PAGES = 10**9


class Slow(torch.autograd.Function):
    """Sleeps on the way back."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


def slow_down(built: TrainContext, kind: str, seconds: float) -> None:
    """Make this rank slow in one way."""
    engine = built.engine
    if kind == "data":
        original = type(built.train_data.dataset).make_batch

        def batch(self: Any, *args: Any, **kw: Any) -> Any:
            time.sleep(seconds)
            return original(self, *args, **kw)

        built.train_data.dataset.__dict__["make_batch"] = batch.__get__(built.train_data.dataset)
    elif kind == "forward":
        engine.module.register_forward_pre_hook(lambda *_: time.sleep(seconds))
    elif kind == "backward":
        embedding = engine.module.get_input_embeddings()
        embedding.register_forward_hook(lambda _m, _i, output: Slow.apply(output, seconds))
    elif kind == "optimizer":
        step = engine.optimizer.step

        def slower(*args: Any, **kw: Any) -> Any:
            time.sleep(seconds)
            return step(*args, **kw)

        engine.optimizer.step = slower


def slow_disk(seconds: float) -> None:
    """Every wait for a file takes longer, below whatever counts it: before the engine opens its files."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    op = AsyncIOBuilder().load(verbose=False)
    wait = op.aio_handle.wait

    class SlowDisk(op.aio_handle):  # type: ignore[misc, name-defined]
        def wait(self) -> Any:
            time.sleep(seconds)
            return wait(self)

    op.aio_handle = SlowDisk


@contextlib.contextmanager
def counted_page_faults(faults: list[float]) -> Iterator[None]:
    """Appends the page faults that ranks are compared with. All ranks have LOADED_PAGES before the first step."""
    page_faults, start_run, update = rank_stats.major_page_faults, Telemetry.start_run, StragglerDetector.update

    def load(self: Any, *args: Any) -> None:
        rank_stats.major_page_faults = lambda: page_faults() + LOADED_PAGES
        start_run(self, *args)

    def compare(self: Any, steps: int, samples: Any) -> Any:
        faults.extend(sample.faults for sample in samples)
        return update(self, steps, samples)

    Telemetry.start_run, StragglerDetector.update = load, compare  # type: ignore[method-assign]
    try:
        yield
    finally:
        Telemetry.start_run, StragglerDetector.update = start_run, update  # type: ignore[method-assign]
        rank_stats.major_page_faults = page_faults


@contextlib.contextmanager
def made_up_gpus(driver: str | None, rank: int) -> Iterator[None]:
    """Each rank believes that it computes on a GPU, of which a made-up NVML knows."""
    if driver is None:
        yield
        return
    ctypes.CDLL(f"{driver}/libnvidia-ml.so.1")  # pynvml then finds it by its name
    os.environ["FAKE_NVML"] = "ecc+narrow thermal"
    find, seconds = rank_stats.find_own_gpu, gpu_watch.MIN_SECONDS_BETWEEN_READS
    rank_stats.find_own_gpu = lambda: gpu_watch.OwnGpu(f"GPU-{rank}", f"0000:{0x1B + rank:02x}:00.0")
    gpu_watch.MIN_SECONDS_BETWEEN_READS = 0.05
    try:
        yield
    finally:
        rank_stats.find_own_gpu, gpu_watch.MIN_SECONDS_BETWEEN_READS = find, seconds


def main() -> None:
    ranks = init_process_group()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        outcome = _train(ranks, job)
        if ranks.is_main_process:
            (Path(job["run"]) / "outcome.json").write_text(json.dumps(outcome))
    destroy_process_group()


def _train(ranks: Distributed, job: dict[str, Any]) -> dict[str, Any]:
    run_dir = RunDir(Path(job["run"]))
    orders = _load_run_config_on_all_ranks(run_dir, ranks)
    _set_log_levels("error")
    slow = job["slow"] if job["slow"] and job["slow"]["rank"] == ranks.rank else None
    if slow and slow["kind"] == "disk":
        slow_disk(slow["seconds"])
    built = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
    if slow:
        slow_down(built, slow["kind"], slow["seconds"])
    wall: list[float] = []
    start_step, record_memory, init = Telemetry.start_step, Telemetry.record_memory, Telemetry.__init__

    def started(self: Any, step: int) -> None:
        wall.append(-time.perf_counter())
        start_step(self, step)

    def ended(self: Any, phase: Any, step: int) -> None:
        record_memory(self, phase, step)
        if phase == "step":
            wall[-1] += time.perf_counter()

    resident: list[tuple[int, int]] = []
    host_memory = memory_usage.host_memory_usage

    def looked() -> dict[str, int]:
        found = host_memory()
        resident.append((found["memory_host_bytes"], psutil.Process().memory_info().rss))
        return found

    Telemetry.start_step, Telemetry.record_memory, memory_usage.host_memory_usage = started, ended, looked  # type: ignore[method-assign]

    def late(self: Any, *args: Any) -> None:
        init(self, *args)
        self.lag_steps = 1

    if job["late"]:
        Telemetry.__init__ = late  # type: ignore[method-assign]
    error = None
    faults: list[float] = []
    try:
        with counted_page_faults(faults), made_up_gpus(job["driver"], ranks.rank):
            train(built)
    except Exception:
        error = traceback.format_exc()
    finally:
        Telemetry.start_step, Telemetry.record_memory, Telemetry.__init__ = start_step, record_memory, init  # type: ignore[method-assign]
        memory_usage.host_memory_usage = host_memory
    built.metrics.close()
    swapped = sum(path.stat().st_size for path in Path(job["swap"]).rglob("*") if f"rank{ranks.rank}" in str(path))
    built.engine.destroy()
    return {"wall": wall, "memory": resident, "swapped": swapped, "faults": faults, "error": error}


if __name__ == "__main__":
    main()
