# SPDX-License-Identifier: Apache-2.0
"""Runs many child processes, some at a time, in one thread: a source for stdin, the last bytes of their output.

A child may print without end or never end: its memory and its time are bounded.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO

_CHUNK_BYTES = 1 << 16
_SWEEP_SECONDS = 0.05
_PIPE_SECONDS = 1.0
"""Time for the pipes to end after the child has: a grandchild that left the session may hold one open."""


@dataclass(frozen=True, slots=True)
class ChildOutput:
    """The end of one child. `code` is None where it did not end in time, `error` is set where it could not start. Times
    are seconds since 1970.
    """

    code: int | None
    out: bytes
    err: bytes
    started_at: float
    ended_at: float
    error: OSError | None = None


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    started_at: float
    deadline: float
    source: memoryview
    """What stdin still gets."""
    kept: dict[IO[bytes], bytearray]
    """The end of the output, by pipe: stdout, then stderr."""
    exited_at: float | None = None


def run_children(
    commands: Iterable[Sequence[str]],
    source: bytes,
    *,
    seconds: float,
    fan_out: int,
    limit: int,
    environ: Mapping[str, str],
) -> list[ChildOutput]:
    """Run every command, `fan_out` at a time, each within `seconds`; the results in the order of the commands.

    Each leads a session, reads `source`, and keeps the last `limit` bytes of its stdout and of its stderr. What is late
    is killed with its session, and all of them are on an exception (Ctrl-C).
    """
    results: dict[int, ChildOutput] = {}
    running: dict[int, _Child] = {}
    waiting, last_sweep = enumerate(commands), 0.0
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                batch = list(islice(waiting, max(0, fan_out - len(running))))
                if not batch and not running:
                    break
                for index, command in batch:
                    child = _start(command, source, seconds, environ)
                    if isinstance(child, ChildOutput):
                        results[index] = child
                        continue
                    running[index] = child
                    _register(selector, child)
                at_end = [_transfer(selector, key, limit) for key, _ in selector.select(_SWEEP_SECONDS)]
                if not any(at_end) and time.monotonic() - last_sweep < _SWEEP_SECONDS:
                    continue
                last_sweep = time.monotonic()
                for index, child in list(running.items()):
                    if (result := _find_end(child, selector, limit)) is not None:
                        results[index] = result
                        del running[index]
        finally:
            for child in running.values():
                _kill(child, selector)
    return [results[index] for index in sorted(results)]


def _start(command: Sequence[str], source: bytes, seconds: float, environ: Mapping[str, str]) -> _Child | ChildOutput:
    started_at = time.time()
    try:
        process = subprocess.Popen(  # noqa: S603
            command,
            env=environ,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return ChildOutput(None, b"", b"", started_at, time.time(), error)
    kept = {pipe: bytearray() for pipe in (process.stdout, process.stderr) if pipe is not None}
    return _Child(process, started_at, time.monotonic() + seconds, memoryview(source), kept)


def _register(selector: selectors.BaseSelector, child: _Child) -> None:
    for pipe in child.kept:
        selector.register(pipe, selectors.EVENT_READ, child)
    if child.process.stdin is not None:
        os.set_blocking(child.process.stdin.fileno(), False)
        selector.register(child.process.stdin, selectors.EVENT_WRITE, child)


def _transfer(selector: selectors.BaseSelector, key: selectors.SelectorKey, limit: int) -> bool:
    """Write to or read from one pipe that is ready; True if it was a pipe of output that is now at its end."""
    child: _Child = key.data
    if key.fileobj is child.process.stdin:
        with contextlib.suppress(BlockingIOError):
            try:
                child.source = child.source[os.write(key.fd, child.source[:_CHUNK_BYTES]) :]
            except BrokenPipeError:
                child.source = child.source[:0]
        if not child.source:
            _close(selector, child.process.stdin)
        return False
    for pipe, kept in child.kept.items():
        if pipe is key.fileobj:
            chunk = os.read(key.fd, _CHUNK_BYTES)
            kept.extend(chunk)
            if len(kept) > 2 * limit:
                del kept[:-limit]
            if not chunk:
                _close(selector, pipe)
            return not chunk
    return False


def _find_end(child: _Child, selector: selectors.BaseSelector, limit: int) -> ChildOutput | None:
    """The result of a child that has ended or is late; None while it may run."""
    now, code = time.monotonic(), child.process.poll()
    if code is None and now < child.deadline:
        return None
    if code is not None:
        child.exited_at = child.exited_at or now
        if now - child.exited_at < _PIPE_SECONDS and not all(pipe.closed for pipe in child.kept):
            return None
    _kill(child, selector, ended=code is not None)
    out, err = (bytes(kept[-limit:]) for kept in child.kept.values())
    return ChildOutput(code, out, err, child.started_at, time.time())


def _kill(child: _Child, selector: selectors.BaseSelector, *, ended: bool = False) -> None:
    if not ended:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
    for pipe in (*child.kept, child.process.stdin):
        if pipe is not None:
            _close(selector, pipe)


def _close(selector: selectors.BaseSelector, pipe: IO[bytes]) -> None:
    if not pipe.closed:
        with contextlib.suppress(KeyError):
            selector.unregister(pipe)
        with contextlib.suppress(OSError):
            pipe.close()
