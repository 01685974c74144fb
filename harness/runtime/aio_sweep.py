# SPDX-License-Identifier: Apache-2.0
"""Finds the fastest settings of DeepSpeed's asynchronous I/O on a disk: its own sweep and handle, in one process.

A program (`python -m harness.runtime.aio_sweep FOLDER SECONDS BYTES`) that prints a JSON object a line: one for each
trial, then the result. DeepSpeed's `ds_nvme_tune` tries the same values and starts a Python process for each.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from harness.hostinfo.torch_extensions import find_planted_ops, set_torch_extensions_dir, torch_extensions_dir

_REPEATS = 2
_MIN_SPEEDUP = 1.03
"""A costlier setting must be faster by this much."""


def sweep_settings() -> list[dict[str, Any]]:
    """DeepSpeed's own search space as `aio` blocks, cheap ones first: fewer threads, less in flight."""
    from deepspeed.nvme.perf_run_sweep import DEFAULT_SWEEP_CONFIG
    from deepspeed.nvme.test_ds_aio_utils import refine_integer_value

    sweep = DEFAULT_SWEEP_CONFIG
    settings = [
        {
            "block_size": refine_integer_value(block) if isinstance(block, str) else block,
            "queue_depth": depth,
            "intra_op_parallelism": threads,
            "single_submit": single,
            "overlap_events": not sequential,
        }
        for block, depth, sequential, single, threads in itertools.product(
            sweep["block_size"],
            sweep["queue_depth"],
            sweep["sequential_requests"],
            sweep["single_submit"],
            sweep["io_parallel"],
        )
    ]
    return sorted(
        settings, key=lambda s: (s["intra_op_parallelism"], s["queue_depth"] * s["block_size"], s["single_submit"])
    )


def run_trials(folder: Path, seconds: float, size: int) -> Iterator[dict[str, Any]]:
    """Bytes a second read and written with each setting, until the time is up."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    aio = AsyncIOBuilder().load(verbose=False)
    deadline = time.monotonic() + seconds
    space = sweep_settings()
    with tempfile.TemporaryFile(dir=folder) as file:  # it has no name, so that no end of the program leaves it behind
        path = f"/proc/self/fd/{file.fileno()}"
        for number, setting in enumerate(space):
            if time.monotonic() > deadline:
                return
            yield {"trial": number + 1, "of": len(space), **setting, **_run_trial(aio, setting, path, size)}


def _run_trial(aio: Any, setting: dict[str, Any], path: str, size: int) -> dict[str, float]:
    handle = aio.aio_handle(
        setting["block_size"],
        setting["queue_depth"],
        setting["single_submit"],
        setting["overlap_events"],
        setting["intra_op_parallelism"],
    )
    buffer = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
    buffer.fill_(7)
    times: dict[str, list[float]] = {"write": [], "read": []}
    try:
        for _ in range(_REPEATS):
            for name, work in (("write", handle.sync_pwrite), ("read", handle.sync_pread)):
                start = time.perf_counter()
                work(buffer, path, 0)
                times[name].append(time.perf_counter() - start)
    finally:
        handle.free_cpu_locked_tensor(buffer)
    return {name: size / min(seconds) for name, seconds in times.items()}


def pick_best(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """The trial that reads and writes as many bytes in the shortest time; a cheaper one that is about as fast wins."""

    def seconds(trial: dict[str, Any]) -> float:
        return float(1 / trial["read"] + 1 / trial["write"])

    fastest = min(map(seconds, trials))
    return next(trial for trial in trials if seconds(trial) <= fastest * _MIN_SPEEDUP)


def main() -> None:
    """argv: folder, seconds, bytes a transfer."""
    folder, seconds, size = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    trials, output = [], sys.stdout
    set_torch_extensions_dir(os.environ)
    try:
        planted = find_planted_ops(torch_extensions_dir(), ["async_io"])
        if planted is not None:
            raise RuntimeError(f"async_io is not loaded: {planted}")
        with contextlib.redirect_stdout(sys.stderr):
            for trial in run_trials(folder, seconds, size):
                trials.append(trial)
                output.write(json.dumps(trial) + "\n")
                output.flush()
    except Exception as error:  # a missing op or a full disk is a fact about this machine
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        sys.stdout.write(json.dumps({"failed": f"{type(error).__name__}: {first_line}"}) + "\n")
        return
    sys.stdout.write(json.dumps({"best": pick_best(trials), "tried": len(trials)}) + "\n")


if __name__ == "__main__":
    main()
