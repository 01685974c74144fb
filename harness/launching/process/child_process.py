"""A `harness` command, or a script of `launch/`, as a child of its own session, and its end with all that it started.

What such a child trains is none of this module's business.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.launching.process.processes import find_run_processes, kill_all

_EXIT_TIMEOUT_SECONDS = 60.0
_SECOND_SIGNAL_SECONDS = 0.5


def spawn_child(
    command: Sequence[str], folder: Path, stdout: Any, stderr: Any = subprocess.STDOUT
) -> subprocess.Popen[bytes]:
    """Start it in `folder` with this package on its path. It hears no Ctrl-C of this terminal."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return subprocess.Popen(  # noqa: S603
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def terminate_child(child: subprocess.Popen[bytes], *, immediately: bool = False) -> None:
    """A launch that is asked to stop ends its ranks (`at_once`: without letting them finish a step); whatever is left
    of its session is killed.
    """
    if child.returncode is None and child.poll() is None:
        child.terminate()
        if immediately:
            time.sleep(_SECOND_SIGNAL_SECONDS)
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)  # the second ends the ranks
        try:
            child.wait(_EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            kill_all(lambda: find_run_processes(Path("/nonexistent"), child.pid), 5.0)
            child.wait()
