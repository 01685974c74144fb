# SPDX-License-Identifier: Apache-2.0
"""Runs one Python script on many hosts at once through ssh. No local shell sees anything that a user wrote.

ssh joins its arguments into a line for the remote shell, so that line has quoted words only; the script goes through
stdin and its request as base64. Judges no answer.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness import input_limits
from harness.file_io import parse_json
from harness.hostinfo.host_survey import HostState
from harness.interpreter import SAFE_PATH
from harness.launching.process.parallel_children import ChildOutput, run_children

MARK = b"HARNESS-PROBE "
FAN_OUT = 256
"""Connections at the same time, each a process of ssh with three pipes."""
HOST_TIMEOUT_SECONDS = 20.0
"""The limit for one host; the others do not wait for it."""
CONNECT_TIMEOUT_SECONDS = 8
SSH_FAILURE = 255
"""The exit code of ssh itself; any other is of the program on the host."""
_SSH_ERRORS: tuple[tuple[str, HostState], ...] = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "host key"),
    ("Host key verification failed", "host key"),
    ("No matching host key", "host key"),
    ("Permission denied", "key refused"),
    ("Too many authentication failures", "key refused"),
)


@dataclass(frozen=True, slots=True)
class HostResult:
    """The answer of one host: the probe's JSON, or why it is missing. Times are seconds since 1970."""

    host: str
    state: HostState
    body: Mapping[str, Any]
    message: str
    started_at: float
    ended_at: float


def ssh_command(host: str, words: Sequence[str], connect: int = CONNECT_TIMEOUT_SECONDS) -> list[str]:
    """The command that runs `words` on a host: keys only, no questions, each word unchanged."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect}", "-o", "ServerAliveInterval=5", "-T"]
    return ["ssh", *options, "--", host, "exec " + shlex.join(words)]


def encode_request(request: Mapping[str, Any]) -> str:
    """A request as one word that no shell changes."""
    return base64.urlsafe_b64encode(json.dumps(request).encode()).decode()


def remote_python_path(environ: Mapping[str, str]) -> list[str]:
    """The module folders of a script that runs on another host: this package, and the PYTHONPATH of `environ`."""
    inherited = environ.get("PYTHONPATH", "").split(os.pathsep)
    return [str(Path(harness.__file__ or "").resolve().parent.parent), *(folder for folder in inherited if folder)]


def probe_command(host: str, python: str, request: Mapping[str, Any]) -> list[str]:
    """The command that runs the probe script from its stdin. A variable, not `-P`: an old remote Python may not
    know the option, and the probe must report that.
    """
    return ssh_command(host, ["env", f"{SAFE_PATH}=1", python, "-", encode_request(request)])


def run_on_hosts(
    hosts: Sequence[str],
    script: Path,
    request: Mapping[str, Any] | Callable[[str], Mapping[str, Any]],
    *,
    timeout_seconds: float = HOST_TIMEOUT_SECONDS,
    fan_out: int = FAN_OUT,
    python: str = sys.executable,
) -> list[HostResult]:
    """Send a request to every host, `fan_out` at a time, each within `timeout_seconds`. Answers in the order of hosts.

    On an exception (Ctrl-C) every ssh ends first.
    """
    commands = (probe_command(host, python, request(host) if callable(request) else request) for host in hosts)
    outputs = run_children(
        commands,
        script.read_bytes(),
        seconds=timeout_seconds,
        fan_out=max(1, fan_out),
        limit=input_limits.HOST_ANSWER,
        environ=_ssh_environ(),
    )
    return [_to_result(host, output, timeout_seconds) for host, output in zip(hosts, outputs, strict=True)]


def _to_result(host: str, output: ChildOutput, seconds: float) -> HostResult:
    when = (output.started_at, output.ended_at)
    if output.error is not None:
        return HostResult(host, "unreachable", {}, f"ssh cannot be started: {output.error.strerror}", *when)
    if output.code is None:
        return HostResult(host, "no answer in time", {}, f"nothing within {seconds:.0f} s", *when)
    return parse_result(host, output.code, output.out, output.err, when)


def parse_result(host: str, code: int, out: bytes, err: bytes, when: tuple[float, float]) -> HostResult:
    """The result of one ssh, from its exit code, stdout and stderr."""
    error_text = err.decode("utf-8", "replace").strip()
    line = next((x for x in reversed(out.split(b"\n")) if x.startswith(MARK)), None)
    if line is not None:
        try:
            body = parse_json(line.removeprefix(MARK))
        except ValueError:
            body = None
        if isinstance(body, dict):
            return HostResult(host, "ok", body, error_text, *when)
    if code == SSH_FAILURE:
        state: HostState = next((state for text, state in _SSH_ERRORS if text in error_text), "unreachable")
        return HostResult(host, state, {}, _last_line(error_text), *when)
    message = _last_line(error_text) or f"exit code {code} and {len(out)} bytes of output"
    return HostResult(host, "no probe", {}, message, *when)


@contextlib.contextmanager
def run_listener(host: str, script: Path, ports: Sequence[int], seconds: float) -> Iterator[list[int]]:
    """While entered, a host accepts connections on these ports (0: any); yields them, nothing when it cannot."""
    request = {"job": "listen", "ports": list(ports), "seconds": seconds}
    command = probe_command(host, sys.executable, request)
    with subprocess.Popen(  # noqa: S603
        command,
        env=_ssh_environ(),
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            yield _read_ports(child, script)
        finally:
            _kill_process_group(child)


def _read_ports(child: subprocess.Popen[bytes], script: Path) -> list[int]:
    if child.stdin is None or child.stdout is None:
        return []
    with contextlib.suppress(OSError):
        child.stdin.write(script.read_bytes())
        child.stdin.close()
    while line := child.stdout.readline(input_limits.AGENT_LINE):
        if line.startswith(MARK):
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                return [int(port) for port in parse_json(line.removeprefix(MARK))["listening"]]
    return []


def _ssh_environ() -> dict[str, str]:
    """The environment of ssh with English messages, since only those are recognised."""
    return dict(os.environ) | {"LC_ALL": "C"}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("@")]
    return lines[-1][:200].rstrip(".") if lines else ""


def _kill_process_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
