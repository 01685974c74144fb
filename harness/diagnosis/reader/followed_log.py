# SPDX-License-Identifier: Apache-2.0
"""The log of a running job as a stream that ends when the job does: when it died, or printed nothing for too long."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

Ending = Literal["", "no writer", "failure", "stall"]
_POLL_SECONDS = 1.0
QUIET_SECONDS = 20.0
"""After a launcher's report of the end, a log that is silent for so long is that of a dead job: launchers end the other
ranks within it. So is one that ends in an error, where no process of this machine writes it.
"""
_MAX_CHUNK = 1 << 18
_HEAD_BYTES = 64
"""A file that begins otherwise is another one: the number of its inode may be the same."""
_ERROR = re.compile(rb"Traceback \(most|^\S*(?:Error|Exception): ", re.MULTILINE)
_LIVE_FACTOR = 6
"""A job may survive an error: a writer that lives has so many times QUIET_SECONDS to go on."""
_END = re.compile(rb"exits with return code|Killing subprocess|CANCELLED AT|ChildFailedError|SIGKILL|core dumped")
_PROGRESS = re.compile(rb"it/s|s/it|SamplesPerSec|oss['\"]?\s?[=:]\s?\d")


class FollowedLog:
    """Use: read it to its end as any stream; `ending` then says why it ended. A file that does not exist yet is waited
    for; one that is truncated or replaced is read again from its beginning.
    """

    ending: Ending

    def __init__(self, file: Path, stall_seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self.name, self.ending = file.name, ""
        self._file, self._stall_seconds, self._sleep = file, stall_seconds, sleep
        self._position, self._head = 0, b""
        self._has_error = self._has_end = self._had_writer = False
        self._quiet_since = time.monotonic()

    def read(self, size: int = -1) -> bytes:
        """The next bytes; waits for them. Empty once the job has ended or stalled. Raises OSError."""
        while not self.ending:
            data = self._read_new(min(size, _MAX_CHUNK) if size >= 0 else _MAX_CHUNK)
            if data:
                self._quiet_since = time.monotonic()
                self._look_at(data)
                return data
            self.ending = self._find_ending(time.monotonic() - self._quiet_since)
            if not self.ending:
                self._sleep(_POLL_SECONDS)
        return b""

    def _read_new(self, size: int) -> bytes:
        try:
            with self._file.open("rb") as stream:
                size_now = os.fstat(stream.fileno()).st_size
                if size_now < self._position or stream.read(len(self._head)) != self._head:
                    self._position, self._head = 0, b""
                stream.seek(self._position)
                data = stream.read(size)
        except FileNotFoundError:
            return b""
        if self._position < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - self._position]
        self._position += len(data)
        return data

    def _look_at(self, data: bytes) -> None:
        """An error with progress after it was survived."""
        errors, ends, progress = ([m.end() for m in p.finditer(data)] for p in (_ERROR, _END, _PROGRESS))
        last = max(progress, default=-1)
        self._has_error = max(errors, default=-1) > last or (self._has_error and not progress)
        self._has_end = max(ends, default=-1) > last or (self._has_end and not progress)

    def _find_ending(self, quiet: float) -> Ending:
        writers = list(find_writers(self._file))
        if not self._is_read():
            return ""
        if self._had_writer and not writers:
            return "no writer"
        self._had_writer = bool(writers)
        is_over = self._has_end or (self._has_error and not writers)
        if quiet >= QUIET_SECONDS * (1 if is_over else _LIVE_FACTOR) and (is_over or self._has_error):
            return "failure"
        return "stall" if quiet >= self._stall_seconds else ""

    def _is_read(self) -> bool:
        """Did the last writer leave nothing behind after the last look?"""
        try:
            return self._file.stat().st_size <= self._position
        except OSError:
            return True


def find_writers(file: Path) -> Iterator[int]:
    """The processes of this machine that have the file open for writing, as far as this user may see them."""
    try:
        file = file.resolve()  # descriptors have the name behind a link
        wanted = file.stat()
    except OSError:
        return
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            descriptors = list((entry / "fd").iterdir())
        except OSError:  # it has ended, or is somebody else's
            continue
        if any(_writes(descriptor, file.name, wanted) for descriptor in descriptors):
            yield int(entry.name)


def _writes(descriptor: Path, name: str, wanted: os.stat_result) -> bool:
    try:
        if descriptor.readlink().name != name:
            return False  # `stat` of another file may hang, where a disk of the network does
        found = descriptor.stat()
        if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
            return False
        flags = re.search(r"flags:\s*0*([0-7]+)", (descriptor.parent.parent / "fdinfo" / descriptor.name).read_text())
    except OSError:  # closed since: its process may have others
        return False
    return flags is not None and bool(int(flags[1], 8) & (os.O_WRONLY | os.O_RDWR))
