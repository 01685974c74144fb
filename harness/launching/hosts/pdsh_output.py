# SPDX-License-Identifier: Apache-2.0
"""The output of pdsh, separated by host again: the lines of each host, and the exit code of its launcher.

Judges nothing. A host's launcher (`launcher/launch.py`) ends with its first failed rank's code, 256 - N for signal N.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO

_MAX_OPEN_FILES = 128
_EXIT_LINE = re.compile(r"pdsh@[^\s:]+: (?P<host>\S+): ssh exited with exit code (?P<code>\d{1,3})")


class PdshDemux:
    """Writes lines to `logs/host-NAME.log` and keeps each host's exit code. Use: `feed` each line, then `close`."""

    def __init__(self, hosts: Iterable[str], logs: Path) -> None:
        self._hosts, self._logs = frozenset(hosts), logs
        self._files: dict[str, IO[str]] = {}
        self.exit_codes: dict[str, int] = {}
        """Host -> exit code of its launcher, where it is not 0."""

    def feed(self, line: str) -> str:
        """The line without pdsh's host prefix."""
        match = _EXIT_LINE.match(line)
        if match and match["host"] in self._hosts:
            self.exit_codes[match["host"]] = int(match["code"])
            return line
        host, colon, text = line.partition(": ")
        if not colon or host not in self._hosts:
            return line
        with contextlib.suppress(OSError):  # a full disk must not stop a training; the log of all has the line too
            self._file_of(host).write(f"{text}\n")
        return text

    def _file_of(self, host: str) -> IO[str]:
        """Its file, the most recent of those that are open; of many hosts, the least recent one is closed."""
        file = self._files.pop(host, None) or (self._logs / f"host-{host}.log").open("a", encoding="utf-8", buffering=1)
        self._files[host] = file
        if len(self._files) > _MAX_OPEN_FILES:
            self._files.pop(next(iter(self._files))).close()
        return file

    def close(self) -> None:
        """Close the files: no more lines will come."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        self._files.clear()
