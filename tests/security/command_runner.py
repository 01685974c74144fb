# SPDX-License-Identifier: Apache-2.0
"""Runs a command of the harness in this process, with a limit of time and of memory. No tests here."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from harness.cli.app import main

SECONDS = 8.0
"""The limit is 2 s of CPU time on a quiet machine; two busy cores take up to three times that for the same work."""
MEMORY_BYTES = 500 << 20
_WAIT_SECONDS = 60.0

SPEC = """\
model: {config: {model_type: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: 259}}
data: {train: builtin:python-docs, max_length: 64}
train: {per_device_train_batch_size: 1, max_steps: 3}
zero: {stage: 3}
"""


class Answer(NamedTuple):
    """What a command did: its exit code, everything that it printed, and its CPU time."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def text(self) -> str:
        """Both streams."""
        return self.stdout + self.stderr

    def assert_unharmed(self) -> Answer:
        """Neither a crash nor a traceback nor a hang."""
        assert self.code != 3, self.text
        assert "Traceback" not in self.text
        assert self.seconds < SECONDS, f"{self.seconds:.1f} s of CPU time"
        return self


def run_command(*arguments: str | Path, stdin: str = "") -> Answer:
    """`harness ARGUMENTS`. A command that waits is interrupted and counts as a crash, one that takes memory too."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace") for _ in range(2)]
    started = time.process_time()
    with (
        patch.object(sys, "argv", ["harness", *map(str, arguments)]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        patch.object(sys, "stdout", streams[0]),
        patch.object(sys, "stderr", streams[1]),
        _limited(),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    texts = [stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in _flushed(streams)]  # type: ignore[attr-defined]
    return Answer(code, texts[0], texts[1], time.process_time() - started)


def _flushed(streams: list[io.TextIOWrapper]) -> list[io.TextIOWrapper]:
    for stream in streams:
        stream.flush()
    return streams


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise TimeoutError("the command waits")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    old_limits = resource.getrlimit(resource.RLIMIT_AS)
    old_handler = signal.signal(signal.SIGALRM, interrupt)
    resource.setrlimit(resource.RLIMIT_AS, (used + 3 * MEMORY_BYTES, old_limits[1]))  # threads reserve stacks
    signal.setitimer(signal.ITIMER_REAL, _WAIT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)
        resource.setrlimit(resource.RLIMIT_AS, old_limits)


def make_pipe(path: Path) -> Path:
    """A pipe whose writer never comes."""
    os.mkfifo(path)
    return path
