# SPDX-License-Identifier: Apache-2.0
"""`harness launch` in a process of its own, for the tests that start real ranks. No tests here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness.launching.hosts.local_host import find_free_port
from harness.launching.process.processes import find_run_processes, read_process_table
from harness.launching.process.shm import Buffer, find_buffers

PORT = find_free_port()
"""Drawn at random: two test processes that run at the same time rarely get the same one."""


def left_over_buffers() -> list[Buffer]:
    """What runs at this process's port left in /dev/shm."""
    return [b for b in find_buffers() if b.port == PORT]


def clean_up(runs: list[Launched]) -> None:
    """End what is left of the runs, whatever a test found."""
    for run in runs:
        for pid in [run.process.pid, *run.living()]:
            if pid in read_process_table():
                os.kill(pid, signal.SIGKILL)
        run.process.wait()
    for buffer in left_over_buffers():
        buffer.path.unlink(missing_ok=True)


class Launched:
    """A launch of `spec`, in which OUTPUT and PORT are filled in, from the folder `where`, and what can be known of its
    run from outside.
    """

    def __init__(self, folder: Path, spec: str, *options: str, where: Path | None = None) -> None:
        self.output = folder / "runs"
        file = folder / "tiny.yaml"
        file.write_text(spec.replace("OUTPUT", str(self.output)).replace("PORT", str(PORT)))
        self.text = folder / "screen.txt"
        command = [sys.executable, "-P", "-m", "harness", "launch", str(file), *options]
        with self.text.open("w") as screen:
            self.process = subprocess.Popen(
                command, cwd=where, stdout=screen, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def run_dir(self) -> Path:
        return (self.output / "latest").resolve()

    def living(self) -> list[int]:
        return [p.pid for p in find_run_processes(self.run_dir, session=-1)]

    def status(self, rank: int) -> dict[str, object]:
        try:
            return json.loads((self.run_dir / "status" / f"rank-{rank:05d}.json").read_text())
        except (OSError, ValueError):
            return {}

    def wait_until(self, done: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            time.sleep(0.05)
        return bool(done())

    def wait_for(self, name: str, seconds: float) -> bool:
        """Until the run directory, which may not be there yet, has this file."""
        return self.wait_until(lambda: bool((self.run_dir / name).exists()), seconds)

    def wait_training(self) -> None:
        """Generous: the ops may have to be compiled first."""
        trains = self.wait_until(lambda: self.process.poll() is not None or self._steps() >= 3, 900)
        assert trains, self.text.read_text()
        assert self.process.poll() is None, self.text.read_text()

    def launcher(self) -> int:
        """The process that DeepSpeed's command starts and that starts the ranks."""
        return next(pid for pid, line in self._commands().items() if b"deepspeed.launcher.launch" in line)

    def runner(self) -> int:
        """DeepSpeed's command."""
        return next(pid for pid, line in self._commands().items() if b"--num_gpus" in line)

    def end(self, seconds: float) -> tuple[int, str]:
        return self.process.wait(seconds), self.text.read_text()

    def _commands(self) -> dict[int, bytes]:
        return {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.living()}

    def _steps(self) -> int:
        try:
            lines = (self.run_dir / "metrics.jsonl").read_text().splitlines()
            return sum(json.loads(line)["type"] == "step" for line in lines if line.endswith("}"))
        except OSError:
            return 0
