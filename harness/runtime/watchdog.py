# SPDX-License-Identifier: Apache-2.0
"""Writes the stacks of this rank when it hangs: on the supervisor's SIGUSR2, and by a timer of its own on hosts that
the supervisor cannot reach. It ends no process; the supervisor does. Where there is no room for the file, the stacks go
to stderr.

`faulthandler` writes them from C, also where a rank holds the interpreter's lock or waits in a collective.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
import time
from pathlib import Path
from typing import IO

_MARGIN_SECONDS = 2.0
_MIN_TIMEOUT_SECONDS = {"start": 1800.0, "save": 1800.0, "end": 1800.0}
"""The phases that may take half an hour, as in `harness.launching.supervise.hang_detector`."""
_UNWATCHED_PHASE = "data"


class Watchdog:
    """Armed until it is closed; every `heartbeat` restarts its timer."""

    def __init__(self, logs: Path, rank: int, attempt: int = 1) -> None:
        name = f"stacks-{rank:05d}.txt" if attempt == 1 else f"stacks-{rank:05d}-{attempt}.txt"
        self.path = logs / name
        self._file: IO[str] = sys.stderr
        with contextlib.suppress(OSError):
            logs.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
        self._timeout_seconds: float | None = None
        self._armed_at = 0.0
        self._phase = ""
        faulthandler.register(signal.SIGUSR2, file=self._file, all_threads=True, chain=False)

    def set_timeout(self, seconds: float | None) -> None:
        """From now on write stacks after so many seconds without progress; None: on SIGUSR2 only."""
        self._timeout_seconds = seconds
        self._arm("step")

    def heartbeat(self, phase: str) -> None:
        """The rank made progress. Arming takes a thread, so it is done once a second at most."""
        if phase != self._phase or time.monotonic() - self._armed_at >= 1.0:
            self._arm(phase)

    def close(self) -> None:
        """Disarm; remove the file if it is empty."""
        faulthandler.cancel_dump_traceback_later()
        faulthandler.unregister(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a late one must not kill
        with contextlib.suppress(OSError):
            if self._file is not sys.stderr:
                self._file.close()
            if not self.path.stat().st_size:
                self.path.unlink()

    def _arm(self, phase: str) -> None:
        self._phase, self._armed_at = phase, time.monotonic()
        if self._timeout_seconds is None or phase == _UNWATCHED_PHASE:
            faulthandler.cancel_dump_traceback_later()
            return
        seconds = max(self._timeout_seconds, _MIN_TIMEOUT_SECONDS.get(phase, 0.0)) + _MARGIN_SECONDS
        faulthandler.dump_traceback_later(seconds, repeat=False, file=self._file)
