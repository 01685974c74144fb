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

from harness.errors import Exit, Refused
from harness.facts import machine
from harness.findings import Finding, Fix
from harness.interpreter import python

SECONDS = 120.0
BYTES = 256 << 20
_START_SECONDS = 900.0
"""Compiling the op takes minutes the first time."""
_PROGRAM = "harness.runtime.tune"
_KEYS = ("block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events")


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best settings, in bytes a second, and the first trial's, which are the cheapest ones."""

    aio: dict[str, Any]
    read: float
    write: float
    tried: int
    of: int
    first_read: float
    first_write: float

    def fragment(self) -> str:
        """What goes into a run spec."""
        lines = [f"    {key}: {json.dumps(value)}" for key, value in self.aio.items()]
        return "\n".join(["deepspeed:", "  aio:", *lines]) + "\n"


def tune(folder: Path, tell: Callable[[dict[str, Any]], None], seconds: float = SECONDS) -> Tuned:
    """The fastest settings on the disk of `folder`; `tell` gets each trial. Raises Refused (OP120)."""
    missing = [name for name in ("torch", "deepspeed") if machine.installed(name) is None]
    if missing:
        raise _refused(f"{' and '.join(missing)} not installed", "pip install 'deepspeed-harness[train]'")
    free = machine.free_bytes(folder) or 0
    size = min(BYTES, free // 4 >> 20 << 20)
    if size < 16 << 20:
        raise _refused(f"`{folder}` has {free >> 20} MiB free, too little to measure", "make room, 1 GiB is enough")
    lines = _run(folder, seconds, size, tell)
    end = lines[-1] if lines else {}
    if "best" not in end:
        raise _refused(str(end.get("failed", "the program ended without a result")), "see `harness doctor`")
    found, first = end["best"], lines[0]
    return Tuned(
        {key: found[key] for key in _KEYS},
        found["read"],
        found["write"],
        end["tried"],
        first["of"],
        first["read"],
        first["write"],
    )


def _run(folder: Path, seconds: float, size: int, tell: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """The program's lines. It is ended when it takes longer than compiling and measuring may."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    lines: list[dict[str, Any]] = []
    with subprocess.Popen(  # noqa: S603
        python("-m", _PROGRAM, str(folder.resolve()), str(seconds), str(size)),
        env={**os.environ, "PYTHONPATH": path, "PATH": tools},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        end = threading.Timer(_START_SECONDS + 2 * seconds, child.kill)
        end.start()
        try:
            for text in child.stdout or ():
                line = _parsed(text)
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


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _refused(message: str, fix: str) -> Refused:
    return Refused([Finding("OP120", "error", f"the disk cannot be measured: {message}", fix=Fix(fix))], Exit.PREFLIGHT)
