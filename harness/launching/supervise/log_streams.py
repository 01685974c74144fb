# SPDX-License-Identifier: Apache-2.0
"""Streams of a running launch: the launcher's output, and the rows that ranks append to metrics.jsonl."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from harness.secret_text import hide_passwords_in_bytes
from harness.side_file import SideFile, describe_output_gap


class LauncherOutput:
    """Reads a pipe in its own thread: writes whole lines to the log, without passwords, and queues them."""

    def __init__(self, pipe: IO[bytes], log: Path) -> None:
        self._pipe, self._log = pipe, log
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True, name="launcher-output")
        self._thread.start()

    def pop_lines(self) -> list[str]:
        """The lines since the last call."""
        lines = []
        while True:
            try:
                lines.append(self._lines.get_nowait())
            except Empty:
                return lines

    def wait(self, seconds: float) -> None:
        """Wait until everything has been read, but no longer than this: a process may keep the other end open."""
        self._thread.join(seconds)

    def _read(self) -> None:
        """Read on even when the log cannot be written: a full disk must not stop the training."""
        rest = b""
        log = SideFile(str(self._log), describe_output_gap)
        while chunk := os.read(self._pipe.fileno(), 65536):
            ended, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                self._take(log, hide_passwords_in_bytes(ended), newline)
        if rest:
            self._take(log, hide_passwords_in_bytes(rest), b"")
        log.close()

    def _take(self, log: SideFile, text: bytes, newline: bytes) -> None:
        if not log.append(text + newline) and log.num_dropped == 1:
            self._lines.put(f"the log cannot be written, output is missing in it from here on: {log.error}")
        for line in text.split(b"\n"):
            self._lines.put(line.decode("utf-8", "replace"))


class LineTail:
    """The lines that another process appends to a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path, self._buffer = path, b""
        try:
            self._position = path.stat().st_size
        except OSError:
            self._position = 0

    def pop_lines(self) -> list[bytes]:
        """New complete lines."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                chunk = file.read()
        except OSError:
            return []
        self._position += len(chunk)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return lines


class JsonlTail(LineTail):
    """The objects that another process appends to a JSON-lines file from now on."""

    def pop_rows(self) -> list[dict[str, object]]:
        """Those of new complete lines, without lines that are no JSON object."""
        rows = []
        for line in self.pop_lines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
        return rows
