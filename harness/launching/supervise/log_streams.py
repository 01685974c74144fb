"""What comes out of a run while it goes on: the launcher's output, and the lines that ranks add to metrics.jsonl."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO


class LauncherOutput:
    """Reads a pipe in a thread of its own: everything goes into the log, whole lines to whoever asks."""

    def __init__(self, pipe: IO[bytes], log: Path) -> None:
        self._pipe, self._log = pipe, log
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True, name="launcher-output")
        self._thread.start()

    def pop_lines(self) -> list[str]:
        """What has come since the last call."""
        found = []
        while True:
            try:
                found.append(self._lines.get_nowait())
            except Empty:
                return found

    def wait(self, seconds: float) -> None:
        """Wait until everything has been read, as long as nobody keeps the other end open for longer."""
        self._thread.join(seconds)

    def _read(self) -> None:
        """Goes on reading when the log cannot be written: a full disk must not stop a training."""
        rest = b""
        with self._log.open("ab", buffering=0) as file:
            writes = True
            while chunk := os.read(self._pipe.fileno(), 65536):
                try:
                    if writes:
                        file.write(chunk)
                except OSError as error:
                    writes = False
                    self._lines.put(f"the log cannot be written any more: {error.strerror}")
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._lines.put(line.decode("utf-8", "replace"))
        if rest:
            self._lines.put(rest.decode("utf-8", "replace"))


class JsonlTail:
    """The lines that are added to a JSON-lines file from now on, while somebody else writes it."""

    def __init__(self, path: Path) -> None:
        self._path, self._buffer = path, b""
        try:
            self._position = path.stat().st_size
        except OSError:
            self._position = 0

    def pop_rows(self) -> list[dict[str, object]]:
        """New complete lines; what is no JSON object is passed over."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                chunk = file.read()
        except OSError:
            return []
        self._position += len(chunk)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        found = []
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                found.append(row)
        return found
