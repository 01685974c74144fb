"""What pdsh brings from several hosts, told apart again: whose a line is, and how each host's launcher ended.

Judges nothing. A host's launcher (`launcher/launch.py`) ends with its first failed rank's code, 256 - N for signal N.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO

_EXIT_LINE = re.compile(r"pdsh@[^\s:]+: (?P<host>\S+): ssh exited with exit code (?P<code>\d{1,3})")


class PdshDemux:
    """Lines go to `logs/host-NAME.log`, each host's exit code is kept. Use: `take` each line, then `close`."""

    def __init__(self, hosts: Iterable[str], logs: Path) -> None:
        self._hosts, self._logs = frozenset(hosts), logs
        self._files: dict[str, IO[str]] = {}
        self.exit_codes: dict[str, int] = {}
        """Host -> exit code of its launcher, of those that ended otherwise than well."""

    def feed(self, line: str) -> str:
        """The line without the host that pdsh has put before it."""
        ended = _EXIT_LINE.match(line)
        if ended and ended["host"] in self._hosts:
            self.exit_codes[ended["host"]] = int(ended["code"])
            return line
        host, colon, text = line.partition(": ")
        if not colon or host not in self._hosts:
            return line
        with contextlib.suppress(OSError):  # a full disk must not stop a training; the log of all has the line too
            if host not in self._files:
                self._files[host] = (self._logs / f"host-{host}.log").open("a", encoding="utf-8", buffering=1)
            self._files[host].write(f"{text}\n")
        return text

    def close(self) -> None:
        """No more lines will come."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        self._files.clear()
