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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Self

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
    index: int
    process: subprocess.Popen[bytes]
    started_at: float
    deadline: float
    source: memoryview
    """What stdin still gets."""
    kept: dict[IO[bytes], bytearray]
    """The end of the output, by pipe: stdout, then stderr."""
    exited_at: float | None = None


@dataclass(slots=True)
class ChildPool:
    """Child processes of which `fan_out` run at a time. Use: `with`, `poll` until it is False; leaving kills the rest.

    Each leads a session, reads `source`, and keeps the last `limit` bytes of its stdout and of its stderr. What takes
    longer than `seconds` is killed with its session.
    """

    commands: Iterable[Sequence[str]]
    source: bytes
    seconds: float
    fan_out: int
    limit: int
    environ: Mapping[str, str]
    on_output: Callable[[int, bytes, bool], object] | None = None
    """Gets each chunk of output as it comes: the number of the command, the bytes, whether it is stderr. With it
    `seconds` is the time without output.
    """
    results: dict[int, ChildOutput] = field(default_factory=dict)
    """By the number of the command, of those that have ended."""
    _running: dict[int, _Child] = field(default_factory=dict)
    _waiting: Iterator[tuple[int, Sequence[str]]] = field(init=False)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _last_sweep: float = 0.0

    def __post_init__(self) -> None:
        self._waiting = iter(enumerate(self.commands))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running.values():
            _kill(child, self._selector)
        self._selector.close()

    def start(self) -> bool:
        """Start as many as may run; False when none runs and none waits."""
        while len(self._running) < self.fan_out and (waiting := next(self._waiting, None)) is not None:
            index, command = waiting
            child = _start(index, command, self.source, self.seconds, self.environ)
            if isinstance(child, ChildOutput):
                self.results[index] = child
                continue
            self._running[index] = child
            _register(self._selector, child)
        return bool(self._running)

    def poll(self, seconds: float = _SWEEP_SECONDS) -> bool:
        """Start what may start, and pass on what is ready within `seconds`; False once all have ended."""
        if not self.start():
            return False
        at_end: dict[int, _Child] = {}
        for key, _ in self._selector.select(seconds):
            if self._transfer(key):
                at_end[key.data.index] = key.data
        if time.monotonic() - self._last_sweep >= _SWEEP_SECONDS:  # those that are late or have closed their output
            self._last_sweep, at_end = time.monotonic(), dict(self._running)
        for index, child in at_end.items():
            if (result := _find_end(child, self._selector, self.limit)) is not None:
                self.results[index] = result
                del self._running[index]
        return True

    def _transfer(self, key: selectors.SelectorKey) -> bool:
        """Write to or read from one pipe that is ready; True if it was a pipe of output that is now at its end."""
        child: _Child = key.data
        if key.fileobj is child.process.stdin:
            with contextlib.suppress(BlockingIOError):
                try:
                    child.source = child.source[os.write(key.fd, child.source[:_CHUNK_BYTES]) :]
                except BrokenPipeError:
                    child.source = child.source[:0]
            if not child.source:
                _close(self._selector, child.process.stdin)
            return False
        for pipe, kept in child.kept.items():
            if pipe is key.fileobj:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                kept.extend(chunk)
                if len(kept) > 2 * self.limit:
                    del kept[: -self.limit]
                if self.on_output is not None and chunk:
                    child.deadline = time.monotonic() + self.seconds
                    self.on_output(child.index, chunk, pipe is child.process.stderr)
                if not chunk:
                    _close(self._selector, pipe)
                return not chunk
        return False


def run_children(
    commands: Iterable[Sequence[str]],
    source: bytes,
    *,
    seconds: float,
    fan_out: int,
    limit: int,
    environ: Mapping[str, str],
) -> list[ChildOutput]:
    """Run every command in a `ChildPool`, each within `seconds`; the results in the order of the commands."""
    with ChildPool(commands, source, seconds, fan_out, limit, environ) as pool:
        while pool.poll():
            pass
    return [pool.results[index] for index in sorted(pool.results)]


def _start(
    index: int, command: Sequence[str], source: bytes, seconds: float, environ: Mapping[str, str]
) -> _Child | ChildOutput:
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
    return _Child(index, process, started_at, time.monotonic() + seconds, memoryview(source), kept)


def _register(selector: selectors.BaseSelector, child: _Child) -> None:
    for pipe in child.kept:
        selector.register(pipe, selectors.EVENT_READ, child)
    if child.process.stdin is not None:
        os.set_blocking(child.process.stdin.fileno(), False)
        selector.register(child.process.stdin, selectors.EVENT_WRITE, child)


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
