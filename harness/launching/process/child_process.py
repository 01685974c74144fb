# SPDX-License-Identifier: Apache-2.0
"""Child processes that run this package: their command, environment, output and end.

A child is a `harness` command, a module or a file of `harness.workers`. This module does not know what it computes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import site
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import harness
from harness.launching.process.processes import die_with_parent, find_run_processes, kill_all

_EXIT_TIMEOUT_SECONDS = 60.0
_SECOND_SIGNAL_SECONDS = 0.5
_UNDO_SECONDS = 2.0
_NO_RUN = Path("/nonexistent")
"""No run directory: only the session identifies the child's processes."""


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """The exit code of a child, None when it did not start or did not end in time, and its JSON object, if any."""

    code: int | None
    body: dict[str, Any] | None = None


def child_environ(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this process's with `changes`, and this package on PYTHONPATH unless it is installed:
    site-packages must not precede the standard library.
    """
    environ = {**os.environ, **(changes or {})}
    root = Path(harness.__file__ or "").resolve().parent.parent
    if root not in (Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())):
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), environ.get("PYTHONPATH", ""))))
    return environ


def own_programs_path() -> str:
    """PATH with the folder of this Python first: another ninja would compile every op again."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def spawn_child(
    command: Sequence[str], folder: Path, stdout: Any, stderr: Any = subprocess.STDOUT
) -> subprocess.Popen[bytes]:
    """Start the child in `folder`, in its own session: Ctrl-C in this terminal does not reach it. It gets SIGTERM when
    the calling thread ends, also by SIGKILL: an export dies of it, a launch ends its ranks.
    """
    return subprocess.Popen(  # noqa: S603
        command,
        cwd=folder,
        env=child_environ(),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, signal.SIGTERM),  # noqa: PLW1509  (only prctl is called)
    )


def terminate_child(child: subprocess.Popen[bytes], *, immediately: bool = False) -> None:
    """Ask a child to stop, and kill what is left of its session after a minute. A launch ends its ranks;
    `immediately`: do not let them finish a step.
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
            kill_session(child, 5.0)


def kill_session(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """End a child and all processes of its session: SIGTERM, then SIGKILL after `grace_seconds`."""
    kill_all(lambda: find_run_processes(_NO_RUN, child.pid), grace_seconds)
    child.wait()


def read_child_answer(
    command: Sequence[str],
    changes: Mapping[str, str] | None = None,
    *,
    timeout: float | None = None,
    stderr: int | None = subprocess.DEVNULL,
) -> ChildAnswer:
    """Run a child to its end; the last line of its stdout is its JSON object. `stderr` None: this process's own."""
    try:
        process = subprocess.run(  # noqa: S603
            command,
            env=child_environ(changes),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ChildAnswer(None)
    lines = process.stdout.strip().splitlines()
    return ChildAnswer(process.returncode, _parse_object(lines[-1]) if lines else None)


def read_child_lines(
    command: Sequence[str],
    on_line: Callable[[dict[str, Any]], None],
    changes: Mapping[str, str] | None = None,
    *,
    timeout: float,
) -> list[dict[str, Any]]:
    """Run a child to its end, or kill it after `timeout`; `on_line` gets each JSON object of its stdout at once.
    SIGTERM ends it with this thread, and SIGKILL where it takes long to remove what it made.
    """
    objects: list[dict[str, Any]] = []
    with subprocess.Popen(  # noqa: S603
        command,
        env=child_environ(changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        preexec_fn=partial(die_with_parent, signal.SIGTERM),  # noqa: PLW1509  (only prctl is called)
    ) as child:
        timer = threading.Timer(timeout, child.kill)
        timer.start()
        try:
            for line in child.stdout or ():
                body = _parse_object(line)
                if body is not None:
                    objects.append(body)
                    on_line(body)
        except BaseException:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_UNDO_SECONDS)
            child.kill()
            raise
        finally:
            timer.cancel()
    return objects


def _parse_object(line: str) -> dict[str, Any] | None:
    try:
        body = json.loads(line)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
