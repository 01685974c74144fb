# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ops that runs on a GPU need are compiled, all at once, by the program that `harness launch` starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu_checks.check import Figures, Start, Task

BUILDER = Path(__file__).resolve().parents[3] / "harness" / "workers" / "op_builder.py"
GPU_OPS = ("cpu_adam", "fused_adam", "pin_memory", "async_io")
CPU_OPS = ("deepspeed_shm_comm", "cpu_adam", "pin_memory", "async_io")
ALL_PRESENT_SECONDS = 40.0


def drive(start: Start) -> Figures:
    """Seconds of each op. In a rehearsal nothing may be compiled: an op that is not there is an error."""
    from harness.hostinfo.torch_extensions import torch_extensions_dir

    task = start.task
    ops = CPU_OPS if task.rehearse else GPU_OPS
    missing = [op for op in ops if not (torch_extensions_dir() / op / f"{op}.so").is_file()]
    jobs = {}
    for op in () if task.rehearse else ops:
        log = (Path(task.folder) / f"{op}.log").open("wb")
        environment = {**os.environ, "MAX_JOBS": "4"}
        jobs[op] = subprocess.Popen(
            [sys.executable, str(BUILDER), op], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        seconds, failed = _wait_for_builds(task, jobs)
    except BaseException:  # the user ends this program, and nobody else would end the compilers
        for job in jobs.values():
            _end(job)
        raise
    found = [op for op in ops if (torch_extensions_dir() / op / f"{op}.so").is_file()]
    return {"seconds_by_op": seconds, "were_missing": missing, "failed": failed, "found": found, "wanted": list(ops)}


def _wait_for_builds(task: Task, jobs: dict[str, subprocess.Popen[bytes]]) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds of each op, and the end of the output of those that failed."""
    began, seconds, failed = time.monotonic(), {}, {}
    while set(jobs) - set(seconds):
        for op, job in jobs.items():
            if op not in seconds and job.poll() is not None:
                seconds[op] = round(time.monotonic() - began, 1)
                if job.returncode:
                    failed[op] = (Path(task.folder) / f"{op}.log").read_text(errors="replace")[-600:]
        if time.monotonic() - began > task.seconds:
            for op in set(jobs) - set(seconds):
                _end(jobs[op])
                seconds[op], failed[op] = task.seconds, f"not ready after {task.seconds:.0f} s"
        time.sleep(0.2)
    return seconds, failed


def _end(job: subprocess.Popen[bytes]) -> None:
    """With its compilers."""
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)


def judge(figures: Figures, _rehearse: bool) -> list[str]:
    """All are there at the end."""
    reasons = [f"{op} cannot be compiled: {text}" for op, text in figures["failed"].items()]
    lost = sorted(set(figures["wanted"]) - set(figures["found"]) - set(figures["failed"]))
    return reasons + [f"{op} is not there" for op in lost]
