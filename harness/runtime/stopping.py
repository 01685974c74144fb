"""How a rank ends before its work is done: asked to by the `stop` file, or because whoever started it is gone.

It kills nobody but itself; the supervisor looks after the rest.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

from harness.errors import Exit
from harness.facts.machine import host_identity
from harness.runtime.rundir import RunDir

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOOK_EVERY_SECONDS = 0.5
_SUPERVISOR = "HARNESS_SUPERVISOR"


def die_with_the_starter() -> None:
    """Never outlive the launcher process, nor the supervisor when it is on this host, not even when they get SIGKILL.

    Ctrl-C in a terminal reaches ranks too; under a supervisor it is ignored here, since the supervisor turns it into a
    `stop` file and the step in hand is finished.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1 and "LOCAL_RANK" in os.environ and _SUPERVISOR in os.environ and not _supervisor_lives():
        os._exit(Exit.TERMINATED)
    if _SUPERVISOR in os.environ:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
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


def asked_to_stop(run_dir: RunDir) -> bool:
    """True when the `stop` file is there."""
    return run_dir.stop.exists()


def reason(run_dir: RunDir) -> str:
    """What the `stop` file says, or that it is there."""
    try:
        return run_dir.stop.read_text(encoding="utf-8", errors="replace").strip() or "a `stop` file was found"
    except OSError:
        return "a `stop` file was found"
