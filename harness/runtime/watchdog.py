"""The stacks of this rank, written when it stands still: for the supervisor's SIGUSR2, and by a clock of its own on
hosts that the supervisor cannot reach. Ends nobody; the supervisor does.

`faulthandler` writes them from C, so a rank that holds the interpreter's lock or waits in a collective is seen too.
"""

from __future__ import annotations

import faulthandler
import signal
import time
from pathlib import Path
from typing import IO

_MARGIN_SECONDS = 2.0
_MIN_TIMEOUT_SECONDS = {"start": 1800.0, "save": 1800.0, "end": 1800.0}
"""As `harness.launching.supervise.hang_detector` has it: what may take half an hour at least."""
_UNWATCHED_PHASE = "data"


class Watchdog:
    """Armed for as long as it is open; `beat` at every sign of progress puts its clock back."""

    def __init__(self, logs: Path, rank: int, attempt: int = 1) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        name = f"stacks-{rank:05d}.txt" if attempt == 1 else f"stacks-{rank:05d}-{attempt}.txt"
        self.path = logs / name
        self._file: IO[str] = self.path.open("w", encoding="utf-8")
        self._timeout_seconds: float | None = None
        self._armed_at = 0.0
        self._phase = ""
        faulthandler.register(signal.SIGUSR2, file=self._file, all_threads=True, chain=False)

    def set_timeout(self, seconds: float | None) -> None:
        """From now on stacks are written after so many seconds without progress; None: only when asked for."""
        self._timeout_seconds = seconds
        self._arm("step")

    def heartbeat(self, phase: str) -> None:
        """Something got on. Arming takes a thread, so it is done once a second at most."""
        if phase != self._phase or time.monotonic() - self._armed_at >= 1.0:
            self._arm(phase)

    def close(self) -> None:
        """No longer; a file that nothing was written to goes."""
        faulthandler.cancel_dump_traceback_later()
        faulthandler.unregister(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # asked for too late, it must not kill
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
