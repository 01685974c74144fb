# SPDX-License-Identifier: Apache-2.0
"""Runs the search for settings of asynchronous I/O and turns the best ones into a fragment of a run spec."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ExitCode, UserError, user_error
from harness.hostinfo import machine
from harness.hostinfo.training_packages import install_command
from harness.interpreter import python_command
from harness.launching.process.child_process import own_programs_path, read_child_lines
from harness.launching.programs.benchmark_runner import AIO_LACKS_NVCC

SEARCH_SECONDS = 120.0
FILE_BYTES = 256 << 20
_STARTUP_SECONDS = 900.0
"""Seconds for compiling the op, which takes minutes the first time."""
_PROGRAM = "harness.runtime.aio_sweep"
_AIO_KEYS = ("block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events")


@dataclass(frozen=True, slots=True)
class AioResult:
    """The best settings, in bytes per second, and those of the first trial, the cheapest ones."""

    aio: dict[str, Any]
    read: float
    write: float
    num_trials: int
    num_settings: int
    first_read: float
    first_write: float

    def to_spec_fragment(self) -> str:
        """The settings as a fragment of a run spec, in YAML."""
        lines = [f"    {key}: {json.dumps(value)}" for key, value in self.aio.items()]
        return "\n".join(["deepspeed:", "  aio:", *lines]) + "\n"


def tune_aio(folder: Path, on_trial: Callable[[dict[str, Any]], None], seconds: float = SEARCH_SECONDS) -> AioResult:
    """The fastest settings on the disk of `folder`; `on_trial` gets each trial. Raises UserError (OP120)."""
    missing = [name for name in ("torch", "deepspeed") if machine.package_version(name) is None]
    if missing:
        raise _disk_error(f"{' and '.join(missing)} not installed", install_command("train"))
    if machine.lacks_nvcc(os.environ):
        without = "`DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES= harness doctor --tune-nvme FOLDER`"
        raise _disk_error(AIO_LACKS_NVCC, f"install the CUDA toolkit of torch's CUDA release; or measure by {without}")
    free = machine.free_bytes(folder) or 0
    size = min(FILE_BYTES, free // 4 >> 20 << 20)
    if size < 16 << 20:
        raise _disk_error(f"`{folder}` has {free >> 20} MiB free, too little to measure", "free at least 1 GiB")
    lines = _run_search(folder, seconds, size, on_trial)
    last = lines[-1] if lines else {}
    if "best" not in last:
        raise _disk_error(str(last.get("failed", "the program ended without a result")), "see `harness doctor`")
    best, first = last["best"], lines[0]
    return AioResult(
        {key: best[key] for key in _AIO_KEYS},
        best["read"],
        best["write"],
        last["tried"],
        first["of"],
        first["read"],
        first["write"],
    )


def _run_search(
    folder: Path, seconds: float, size: int, on_trial: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """The program's lines. Kills it after the time limit for compiling and measuring."""

    def pass_on(line: dict[str, Any]) -> None:
        if "trial" in line:
            on_trial(line)

    command = python_command("-m", _PROGRAM, str(folder.resolve()), str(seconds), str(size))
    return read_child_lines(command, pass_on, {"PATH": own_programs_path()}, timeout=_STARTUP_SECONDS + 2 * seconds)


def _disk_error(message: str, fix: str) -> UserError:
    return user_error("OP120", f"the disk cannot be measured: {message}", fix=fix, code=ExitCode.PREFLIGHT)
