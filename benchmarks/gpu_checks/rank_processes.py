# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes: each started by itself, or forked from one that has imported everything, for rehearsals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import Ending, Task
from harness.launching.hosts.local_host import find_free_port

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("check_process.py")
GRACE_SECONDS = 5.0
"""After one rank has failed, for how long the others may end by themselves."""


def start_ranks(task: Task) -> Ending:
    """Start a process for each rank, and wait until all have ended or the time is up; then end them."""
    folder, port = Path(task.folder), find_free_port()
    began = time.monotonic()
    ranks: list[subprocess.Popen[bytes]] = []
    for rank in range(task.ranks):
        with (folder / f"output-{rank}.txt").open("wb") as output:
            command = [sys.executable, "-u", str(PROGRAM), task.to_json()]
            environment = rank_environment(task, rank, port)
            ranks.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
                )
            )
    try:
        first = _wait_for_ranks(ranks, began + task.seconds)
    except BaseException:  # the user ends this program, and nobody else would take the ranks off the GPU
        _kill(ranks)
        raise
    text = (folder / f"output-{first}.txt").read_text(encoding="utf-8", errors="replace")
    return Ending([rank.wait() for rank in ranks], read_figures(folder), text, time.monotonic() - began)


def read_figures(folder: Path) -> dict[str, Any]:
    """Those of rank 0, once; empty where it wrote none."""
    file = folder / "figures-0.json"
    with suppress(OSError, ValueError):
        figures: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        file.unlink()
        return figures
    return {}


def rank_environment(task: Task, rank: int, port: int) -> dict[str, str]:
    """As a launcher sets it. On a GPU each rank is a host of its own with the same device 0."""
    local = str(rank if task.rehearse else 0)
    local_size = str(task.ranks if task.rehearse else 1)
    more = {"RANK": str(rank), "WORLD_SIZE": str(task.ranks), "LOCAL_RANK": local, "LOCAL_SIZE": local_size}
    more |= {"LOCAL_WORLD_SIZE": local_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    more |= {"CROSS_RANK": "0" if task.rehearse else str(rank), "CROSS_SIZE": "1" if task.rehearse else str(task.ranks)}
    more |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    more |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    more |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # sums of a fixed order
    if task.rehearse:
        more |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, "HARNESS_PROGRESS": "plain", **more}


def _wait_for_ranks(ranks: list[subprocess.Popen[bytes]], deadline: float) -> int:
    """Until all have ended. Returns the rank that failed first, 0 where none did."""
    first, end = -1, deadline
    while any(rank.poll() is None for rank in ranks):
        failed = [number for number, rank in enumerate(ranks) if rank.poll()]
        if failed and first < 0:
            first, end = failed[0], min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > end:
            _kill(ranks)
        time.sleep(0.05)
    return max(first, 0) if first >= 0 else next((n for n, rank in enumerate(ranks) if rank.poll()), 0)


def _kill(ranks: list[subprocess.Popen[bytes]]) -> None:
    """End these ranks and what they started."""
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)


class ForkedStart:
    """The same from one process that has imported torch and DeepSpeed; on a CPU alone, since CUDA does not survive a
    fork.
    """

    def __init__(self, ranks: Any = None) -> None:
        from tests.support.training.forked_ranks import ForkedRanks

        self._ranks: ForkedRanks = ranks or ForkedRanks()

    def __call__(self, task: Task) -> Ending:
        began = time.monotonic()
        answer = self._ranks.run(PROGRAM, task.to_json(), ranks=task.ranks, timeout=task.seconds, check=False)
        figures = read_figures(Path(task.folder))
        return Ending(answer["codes"], figures, answer["output"][answer["first"]], time.monotonic() - began)

    def close(self) -> None:
        """End that process."""
        self._ranks.close()
