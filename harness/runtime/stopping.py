"""How a rank ends early: asked to by a signal or by the `stop` file, or because whoever started it is gone.

It kills nobody but itself; the supervisor looks after the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

from harness.errors import Exit
from harness.facts.machine import host_identity
from harness.runtime.ranks import Ranks
from harness.runtime.rundir import RunDir

_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_TWICE_SECONDS = 2.0
"""A scheduler signals every process of a job, and DeepSpeed's launcher passes SIGTERM on: what comes so soon after the
first is the same request."""
_received: list[tuple[int, float]] = []
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOOK_EVERY_SECONDS = 0.5
_SUPERVISOR = "HARNESS_SUPERVISOR"


def die_with_the_starter() -> None:
    """Never outlive the launcher process, nor the supervisor when it is on this host, even when they get SIGKILL."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1 and "LOCAL_RANK" in os.environ and _SUPERVISOR in os.environ and not _supervisor_lives():
        os._exit(Exit.TERMINATED)
    if _SUPERVISOR in os.environ:
        threading.Thread(target=_watch, name="supervisor-watch", daemon=True).start()


def _watch() -> None:
    while _supervisor_lives():
        time.sleep(_LOOK_EVERY_SECONDS)
    os._exit(Exit.TERMINATED)


def _supervisor_lives() -> bool:
    """True when it runs, or when it is on another host and cannot be seen from here.

    HARNESS_SUPERVISOR is `host:boot id:pid:start time in clock ticks`; two hosts may have one name, never one boot id.
    """
    host, pid, started = os.environ[_SUPERVISOR].rsplit(":", 2)
    if host != host_identity():
        return True
    try:
        # The command name may hold blanks and brackets: fields count from the last bracket. Start time is field 22.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == started and fields[0] not in {"Z", "X"}


def listen() -> None:
    """From now on SIGTERM, SIGINT and SIGUSR1 ask for a stop at the next step; until now there was nothing to finish.

    A second one ends this rank at once. SIGUSR1 may have been sent before: the supervisor starts ranks with it blocked.
    """
    for signum in _ASKING:
        signal.signal(signum, _note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])


def _note(signum: int, _frame: FrameType | None) -> None:
    now = time.monotonic()
    if _received and now - _received[0][1] > _TWICE_SECONDS:
        os._exit(128 + signum)
    _received.append((signum, now))


def agree_to_stop(run_dir: RunDir, ranks: Ranks) -> str | None:
    """Why all ranks stop after this step, the same words on every rank; None to go on. A collective.

    What a signal asked of one rank is left in the `stop` file, for whoever judges how the run ended.
    """
    asked = _asked(run_dir, ranks.rank)
    if not ranks.any(asked is not None):
        return None
    reasons = [reason for reason in ranks.gather(asked) if reason]
    if ranks.is_first and not run_dir.stop.exists():
        with contextlib.suppress(OSError):
            run_dir.stop.write_text(reasons[0] + "\n", encoding="utf-8")
    return reasons[0]


def _asked(run_dir: RunDir, rank: int) -> str | None:
    """What the `stop` file says, or which signal came here."""
    try:
        return run_dir.stop.read_text(encoding="utf-8", errors="replace").strip() or "a `stop` file was found"
    except OSError:
        pass
    return f"{signal.Signals(_received[0][0]).name} to rank {rank}" if _received else None
