# SPDX-License-Identifier: Apache-2.0
"""A launcher and its one rank in one process, without torch, that misbehaves as told. Started by test_restarts.py.

    pretend_rank.py RUN SCRIPT [--attempt N] [--resume CHECKPOINT]

SCRIPT is JSON: for each attempt a list of words, `step:N`, `save:N`, `print:TEXT`, and how it ends: `fail:ERROR`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from harness.checkpoints import manifest
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.watchdog import Watchdog


def save(run_dir: RunDir, step: int) -> None:
    folder = run_dir.checkpoints / f"step-{step:08d}"
    folder.mkdir(parents=True)
    body = {"state": {"step": step}, "tag": f"global_step{step}", "world": 1, "zero_stage": 0, "dtype": "float32"}
    manifest.write_manifest(folder, {"format_version": manifest.FORMAT_VERSION, **body, "files": {}})


def hold_the_interpreter() -> None:
    """Wait for ever in C without giving the interpreter's lock back, and without being woken by signals."""
    library = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def wait_for_oneself() -> None:
    """As in a collective that others never join: the interpreter's lock is free, signals are looked at between waits."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def take_step(run_dir: RunDir, status: RankStatusWriter, step: int) -> None:
    with run_dir.metrics.open("a") as file:
        file.write(json.dumps({"type": "step", "step": step, "loss": 1.0}) + "\n")
    status.update("running", step=step)
    time.sleep(1.05)  # a running rank writes its state once a second
    status.update("running", step=step)


def write_line(run_dir: RunDir, step: int) -> None:
    """A step that no status has yet."""
    with run_dir.metrics.open("a") as file:
        file.write(json.dumps({"type": "step", "step": step, "loss": 1.0}) + "\n")
    time.sleep(0.5)


def write_half_a_line(run_dir: RunDir) -> None:
    with run_dir.metrics.open("a") as file:
        file.write('{"type": "st')


def obey(run_dir: RunDir, status: RankStatusWriter) -> None:
    """Take steps until asked to stop."""
    while not run_dir.stop.exists():
        time.sleep(0.05)
    status.update("stopped")
    sys.exit(0)


def end(status: RankStatusWriter, code: int, **said: object) -> None:
    status.update("failed" if code else "completed", **said)
    sys.exit(code)


def act(word: str, run_dir: RunDir, status: RankStatusWriter) -> None:
    name, _, number = word.partition(":")
    {
        "step": lambda: take_step(run_dir, status, int(number)),
        "save": lambda: save(run_dir, int(number)),
        "line": lambda: write_line(run_dir, int(number)),
        "half-a-line": lambda: write_half_a_line(run_dir),
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "raise": lambda: end(status, 1, error=f"RuntimeError: port {os.getpid()} is closed"),
        "print": lambda: print(number, file=sys.stderr, flush=True),
        "fail": lambda: end(status, 1, error=number),
        "refuse": lambda: end(status, 1, error="no such file", is_user_error=True),
        "complete": lambda: end(status, 0),
        "interpreter": hold_the_interpreter,
        "deadlock": wait_for_oneself,
        "obey": lambda: obey(run_dir, status),
        "wait": lambda: time.sleep(600),
    }[name]()


def main(run: str, script: str, *options: str) -> None:
    given = dict(zip(options[::2], options[1::2], strict=True))
    attempt = int(given.get("--attempt", "1"))
    run_dir = RunDir(Path(run))
    watchdog = Watchdog(run_dir.root / "logs", 0, attempt)
    status = RankStatusWriter(run_dir, 0, on_progress=watchdog.heartbeat)
    status.update("starting")
    (run_dir.root / f"resumed-{attempt}").write_text(Path(given.get("--resume", "/nothing")).name)
    for word in json.loads(script)[attempt - 1]:
        act(word, run_dir, status)


if __name__ == "__main__":
    main(*sys.argv[1:])
