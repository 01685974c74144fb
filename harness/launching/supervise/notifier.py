# SPDX-License-Identifier: Apache-2.0
"""Notifications of a launch, `--notify`: a POST to a URL or a command, at a stall, a failure and the end.

Each has a thread of its own: no launch waits for one before its end, and none fails because of one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from harness.launching.process.processes import die_with_parent
from harness.secret_text import hide_passwords
from harness.verdicts import Verdict, describe_verdict

Event = Literal["stall", "failure", "end"]
_SCHEMES = ("http://", "https://")
"""A target that begins so is a URL; every other is a command."""
_SECONDS = 10.0
"""The limit for a notification, and for those that are under way when the launch ends."""
_MAX_EVENTS = 50
"""Of a launch that restarts without end."""


@dataclass(slots=True)
class Notifier:
    """Sends the events of one launch to `target`; None: sends nothing."""

    target: str | None
    name: str
    run_dir: Path
    problems: list[str] = field(default_factory=list)
    """Why notifications were not sent. They name the host of a URL alone, whose path is often a secret."""
    _threads: list[threading.Thread] = field(default_factory=list)

    def send(self, event: Event, text: str, verdict: Verdict | None = None) -> None:
        """Begin to send an event. Returns at once."""
        if self.target is None or len(self._threads) >= _MAX_EVENTS:
            return
        line = hide_passwords(f"{self.name}: {text}")
        body: dict[str, object] = {"event": event, "text": line, "run": self.run_dir.name, "run_dir": str(self.run_dir)}
        if verdict is not None:
            body |= {"state": verdict.state, "code": verdict.code, "step": verdict.step}
        thread = threading.Thread(target=self._send, args=(self.target, body), name="notify", daemon=True)
        self._threads.append(thread)
        thread.start()

    def send_end(self, verdict: Verdict) -> None:
        """Begin to send the end of the launch: a failure, or another end."""
        self.send("failure" if verdict.state == "failed" else "end", describe_verdict(verdict), verdict)

    def close(self) -> list[str]:
        """Wait for the notifications that are under way, some seconds at most; the problems of all."""
        deadline = time.monotonic() + _SECONDS + 1
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        unsent = sum(thread.is_alive() for thread in self._threads)
        self.problems += [f"{unsent} of {len(self._threads)} notifications did not end in time"] if unsent else []
        return self.problems

    def _send(self, target: str, body: dict[str, object]) -> None:
        text = json.dumps(body).encode()
        problem = _post(target, text) if target.startswith(_SCHEMES) else _run_command(target, text, body)
        if problem:
            where = f"to {urlsplit(target).hostname}" if target.startswith(_SCHEMES) else "by the command"
            self.problems.append(f"the notification of the {body['event']} {where} failed: {problem}")


def _post(url: str, text: bytes) -> str:
    """The reason why the URL did not take the text; empty if it did."""
    request = urllib.request.Request(url, text, {"Content-Type": "application/json", "User-Agent": "harness"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS):  # noqa: S310  (http or https)
            return ""
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except Exception as error:  # OSError, HTTPException, ValueError ...; its text may have the URL
        reason = getattr(error, "reason", None)
        return getattr(reason, "strerror", None) or type(reason or error).__name__


def _run_command(command: str, text: bytes, body: dict[str, object]) -> str:
    """The reason why the command failed. It reads the event on its input, and words of it from its environment."""
    variables = {"HARNESS_EVENT": str(body["event"]), "HARNESS_TEXT": str(body["text"])}
    try:
        child = subprocess.Popen(  # noqa: S602  (a command of the user's own)
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **variables, "HARNESS_RUN_DIR": str(body["run_dir"])},
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  (only prctl is called)
        )
    except OSError as error:
        return (error.strerror or str(error)).lower()
    try:
        child.communicate(text, _SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return f"it was killed after {_SECONDS:.0f} s"
    return f"exit code {child.returncode}" if child.returncode else ""
