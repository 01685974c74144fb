# SPDX-License-Identifier: Apache-2.0
"""Early ends of a rank: on a signal, on the `stop` file, or when the process that started it is gone.

A rank ends itself only; the supervisor ends the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from harness.errors import ExitCode
from harness.hostinfo.machine import host_identity
from harness.runtime.distributed import Distributed
from harness.runtime.run_config import RunDir

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SAME_REQUEST_SECONDS = 2.0
"""A scheduler signals every process of a job, and DeepSpeed's launcher passes SIGTERM on: what comes so soon after the
first is the same request."""
_received_signals: list[tuple[int, float]] = []
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_INTERVAL_SECONDS = 0.5
_SUPERVISOR_VARIABLE = "HARNESS_SUPERVISOR"


def exit_with_parent() -> None:
    """Never outlive the launcher process, nor the supervisor when it is on this host, even when they get SIGKILL."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if (
        os.getppid() == 1
        and "LOCAL_RANK" in os.environ
        and _SUPERVISOR_VARIABLE in os.environ
        and not _supervisor_is_alive()
    ):
        os._exit(ExitCode.TERMINATED)
    if _SUPERVISOR_VARIABLE in os.environ:
        threading.Thread(target=_watch_supervisor, name="supervisor-watch", daemon=True).start()


def _watch_supervisor() -> None:
    while _supervisor_is_alive():
        time.sleep(_POLL_INTERVAL_SECONDS)
    os._exit(ExitCode.TERMINATED)


def _supervisor_is_alive() -> bool:
    """True when it runs, or when it is on another host and cannot be seen from here.

    HARNESS_SUPERVISOR is `host:boot id:pid:start time in clock ticks`; two hosts may have one name, never one boot id.
    """
    host, pid, started = os.environ[_SUPERVISOR_VARIABLE].rsplit(":", 2)
    if host != host_identity():
        return True
    try:
        # The command name may hold blanks and brackets: fields count from the last bracket. Start time is field 22.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == started and fields[0] not in {"Z", "X"}


def install_signal_handlers() -> None:
    """From now on SIGTERM, SIGINT and SIGUSR1 request a stop after the step; before, there was no step to finish.

    A second one ends this rank at once. SIGUSR1 may have been sent before: the supervisor starts ranks with it blocked.
    """
    for signum in _STOP_SIGNALS:
        signal.signal(signum, _record_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])


@contextlib.contextmanager
def handlers_given_back() -> Iterator[set[int]]:
    """After this context SIGTERM, SIGINT and SIGUSR1 do what they did before it; what it yields has those that came."""
    before, received = {signum: signal.getsignal(signum) for signum in _STOP_SIGNALS}, set[int]()
    yield received
    received |= {signum for signum, _ in _received_signals}
    _received_signals.clear()
    for signum, handler in before.items():
        signal.signal(signum, handler)


def unblock_stop_signal() -> None:
    """For code of the user's own, which may handle SIGUSR1 itself: until it does, the signal is kept for a stop."""
    signal.signal(signal.SIGUSR1, _record_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])


def _record_signal(signum: int, _frame: FrameType | None) -> None:
    now = time.monotonic()
    if _received_signals and now - _received_signals[0][1] > _SAME_REQUEST_SECONDS:
        os._exit(128 + signum)
    _received_signals.append((signum, now))


def gather_stop_reason(run_dir: RunDir, distributed: Distributed, own_reason: str | None = None) -> str | None:
    """The reason why all ranks stop after this step, the same text on every rank; None to continue. A collective.
    `own_reason`: one that this rank has found itself.

    The reason is left in the `stop` file too, which the supervisor reads after the run.
    """
    local_reason = local_stop_reason(run_dir, distributed.rank) or own_reason
    if not distributed.any_rank(local_reason is not None):
        return None
    reasons = [reason for reason in distributed.all_gather_object(local_reason) if reason]
    if distributed.is_main_process and not run_dir.stop.exists():
        with contextlib.suppress(OSError):
            run_dir.stop.write_text(reasons[0] + "\n", encoding="utf-8")
    return reasons[0]


def local_stop_reason(run_dir: RunDir, rank: int) -> str | None:
    """The text of the `stop` file, or the signal that this rank received."""
    try:
        return run_dir.stop.read_text(encoding="utf-8", errors="replace").strip() or "a `stop` file was found"
    except OSError:
        pass
    return f"{signal.Signals(_received_signals[0][0]).name} to rank {rank}" if _received_signals else None
