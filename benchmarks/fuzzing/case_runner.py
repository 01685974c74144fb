# SPDX-License-Identifier: Apache-2.0
"""One case in a forked child: what it printed, its CPU time, the growth of its memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HANG_SECONDS = 2.0
"""CPU time. Wall time would count what else runs on the machine; a child that waits ends after `_WAIT_SECONDS`."""
MEMORY_BYTES = 500 << 20
_WAIT_SECONDS = 20
Fault = Literal["crash", "hang", "memory"]


@dataclass(frozen=True)
class CaseResult:
    """What a case did. `fault` is None where it ended as it should; `output` is cut."""

    fault: Fault | None
    reason: str
    seconds: float
    growth_bytes: int
    output: str


def run_case(read: Callable[[], int], scratch: Path, hang_seconds: float = HANG_SECONDS) -> CaseResult:
    """Call `read` in a child process; it returns an exit code, of which 3 is a crash as any exception is."""
    output = scratch / "output"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(_resident_bytes()).encode())
        _run_child(read, output)
    os.close(writing)
    before = int(os.read(reading, 32) or 0)
    os.close(reading)
    deadline = time.monotonic() + _WAIT_SECONDS
    waited = False
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline and not waited:
            waited = True
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    text = output.read_bytes()[-4000:].decode("utf-8", "replace") if output.exists() else ""
    seconds = usage.ru_utime + usage.ru_stime
    growth = max(0, usage.ru_maxrss * 1024 - before)
    fault, reason = _judge(status, seconds, growth, hang_seconds, waited=waited)
    return CaseResult(fault, reason, seconds, growth, text)


def _judge(status: int, seconds: float, growth: int, hang_seconds: float, *, waited: bool) -> tuple[Fault | None, str]:
    if waited:
        return "hang", f"no end after {_WAIT_SECONDS} s"
    if seconds > hang_seconds:
        return "hang", f"{seconds:.1f} s of CPU time"
    if os.WIFSIGNALED(status):
        return "crash", f"signal {os.WTERMSIG(status)}"
    if os.WEXITSTATUS(status) == 3:
        return "crash", "an exception"
    if growth > MEMORY_BYTES:
        return "memory", f"{growth >> 20} MiB"
    return None, ""


def _run_child(read: Callable[[], int], output: Path) -> None:
    code = 3
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (15, 15))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        limit = _virtual_bytes() + (3 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (stream, 1), (stream, 2)):
            os.dup2(source, target)
        try:
            code = read()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 3
    finally:
        for stream_object in (sys.stdout, sys.stderr):
            try:
                stream_object.flush()
            except Exception:  # the child ends here in any case
                code = code or 3
        os._exit(code)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
