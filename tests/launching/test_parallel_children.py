# SPDX-License-Identifier: Apache-2.0
"""Many child processes at a time: order, limits and what is left of them. Needs nothing; a second."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import pytest

from harness.launching.process.parallel_children import run_children


def run(*scripts: str, source: bytes = b"", seconds: float = 20.0, fan_out: int = 4, limit: int = 1000):
    commands = (["sh", "-c", script] for script in scripts)
    return run_children(commands, source, seconds=seconds, fan_out=fan_out, limit=limit, environ=dict(os.environ))


def test_each_reads_the_source_and_results_are_in_order():
    source = b"x" * 300_000
    results = run(*(f"sleep 0.0{9 - i}; wc -c; echo {i} >&2; exit {i}" for i in range(9)), source=source)
    assert [(r.code, int(r.out), int(r.err)) for r in results] == [(i, 300_000, i) for i in range(9)]
    assert all(r.started_at <= r.ended_at for r in results)


def test_no_more_run_at_a_time_than_may(tmp_path):
    script = f"touch {tmp_path}/$$; ls {tmp_path} | wc -l; sleep 0.05; rm {tmp_path}/$$"
    assert max(int(r.out) for r in run(*[script] * 12, fan_out=3)) <= 3


def test_what_is_late_or_loud_holds_up_nobody():
    start = time.monotonic()
    late, loud, good, missing = run_children(
        [["sleep", "60"], ["yes"], ["echo", "a"], ["/nowhere/at/all"]],
        b"",
        seconds=1.0,
        fan_out=4,
        limit=100,
        environ=dict(os.environ),
    )
    assert time.monotonic() - start < 15
    assert (late.code, loud.code, good.code, good.out) == (None, None, 0, b"a\n")
    assert len(loud.out) == 100
    assert missing.error is not None


def test_a_grandchild_that_holds_a_pipe_is_not_waited_for():
    start = time.monotonic()
    (result,) = run("setsid sleep 30 & echo $!")
    assert (result.code, time.monotonic() - start < 10) == (0, True)
    os.kill(int(result.out), signal.SIGKILL)


@pytest.fixture
def interruptible():
    """SIGINT raises KeyboardInterrupt. A shell without job control starts its background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_nobody_is_left_after_an_interrupt():
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    name = f"sleep 6{os.getpid() % 10**6:06d}"
    with pytest.raises(KeyboardInterrupt):
        run(*[f"exec {name}"] * 3)
    assert (
        name
        not in subprocess.run(["ps", "-eo", "args"], text=True, capture_output=True, check=True).stdout.splitlines()
    )
