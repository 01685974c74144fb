"""Starts the program that tries settings of asynchronous I/O, and makes a piece of a run spec of the best."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.interpreter import python_command

SEARCH_SECONDS = 120.0
FILE_BYTES = 256 << 20
_STARTUP_SECONDS = 900.0
"""Compiling the op takes minutes the first time."""
_PROGRAM = "harness.runtime.aio_sweep"
_AIO_KEYS = ("block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events")


@dataclass(frozen=True, slots=True)
class AioResult:
    """The best settings, in bytes a second, and the first trial's, which are the cheapest ones."""

    aio: dict[str, Any]
    read: float
    write: float
    num_trials: int
    num_settings: int
    first_read: float
    first_write: float

    def to_spec_fragment(self) -> str:
        """What goes into a run spec."""
        lines = [f"    {key}: {json.dumps(value)}" for key, value in self.aio.items()]
        return "\n".join(["deepspeed:", "  aio:", *lines]) + "\n"


def tune_aio(folder: Path, on_trial: Callable[[dict[str, Any]], None], seconds: float = SEARCH_SECONDS) -> AioResult:
    """The fastest settings on the disk of `folder`; `tell` gets each trial. Raises Refused (OP120)."""
    missing = [name for name in ("torch", "deepspeed") if machine.package_version(name) is None]
    if missing:
        raise _disk_error(f"{' and '.join(missing)} not installed", "pip install 'deepspeed-harness[train]'")
    free = machine.free_bytes(folder) or 0
    size = min(FILE_BYTES, free // 4 >> 20 << 20)
    if size < 16 << 20:
        raise _disk_error(f"`{folder}` has {free >> 20} MiB free, too little to measure", "make room, 1 GiB is enough")
    lines = _run_search(folder, seconds, size, on_trial)
    end = lines[-1] if lines else {}
    if "best" not in end:
        raise _disk_error(str(end.get("failed", "the program ended without a result")), "see `harness doctor`")
    found, first = end["best"], lines[0]
    return AioResult(
        {key: found[key] for key in _AIO_KEYS},
        found["read"],
        found["write"],
        end["tried"],
        first["of"],
        first["read"],
        first["write"],
    )


def _run_search(
    folder: Path, seconds: float, size: int, tell: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """The program's lines. It is ended when it takes longer than compiling and measuring may."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    lines: list[dict[str, Any]] = []
    with subprocess.Popen(  # noqa: S603
        python_command("-m", _PROGRAM, str(folder.resolve()), str(seconds), str(size)),
        env={**os.environ, "PYTHONPATH": path, "PATH": tools},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        end = threading.Timer(_STARTUP_SECONDS + 2 * seconds, child.kill)
        end.start()
        try:
            for text in child.stdout or ():
                line = _parse_line(text)
                if line is not None:
                    lines.append(line)
                    if "trial" in line:
                        tell(line)
        except BaseException:
            child.terminate()
            raise
        finally:
            end.cancel()
    return lines


def _parse_line(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _disk_error(message: str, fix: str) -> UserError:
    return UserError(
        [Finding("OP120", "error", f"the disk cannot be measured: {message}", fix=Fix(fix))], ExitCode.PREFLIGHT
    )
