"""Has every other host compile the ops that its ranks will load, once and before they start, by `op_builder.py`.

All hosts work at once; one that has everything says so without importing torch. Judges no host but by what it answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import harness
from harness.errors import ExitCode, UserError
from harness.facts.required_ops import COMPILE_SECONDS
from harness.findings import Finding, Fix
from harness.launching.hosts.ssh import encode_request, ssh_command
from harness.launching.ops.local_build import report_leftover
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import LaunchPlan

_SILENCE_SECONDS = 1800.0
"""An op that takes longer to compile is not compiling any more."""
_MAX_ERROR_CHARS = 4000


@dataclass(slots=True)
class _RemoteBuilder:
    host: str
    child: subprocess.Popen[bytes]
    stderr_file: IO[bytes]
    op: str = ""
    started_at: float = 0.0
    last_output: float = field(default_factory=time.monotonic)
    buffer: bytes = b""
    failed_op: str | None = None


@contextlib.contextmanager
def build_on_hosts(plan: LaunchPlan, services: LaunchContext) -> Iterator[None]:
    """While entered the hosts other than this machine make their ops ready; leaving it waits for all of them.

    Raises Refused (EN010, exit code 4) when one cannot, Interrupted when a signal came meanwhile.
    """
    builders = (
        _start_builders(plan, services.scripts, plan.run_dir / "logs") if plan.ops and plan.starts_remote_ranks else []
    )
    try:
        yield
        _relay_build_events(builders, services)
        found = [finding for builder in builders for finding in _builder_findings(builder, plan)]
        if found:
            raise UserError(found, ExitCode.PREFLIGHT)
    finally:
        for builder in builders:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(builder.child.pid, signal.SIGKILL)
            builder.child.wait()
            builder.stderr_file.close()
            if builder.child.stdout is not None:
                builder.child.stdout.close()


def _start_builders(plan: LaunchPlan, scripts: Path, logs: Path) -> list[_RemoteBuilder]:
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    request = {
        "path": [str(Path(harness.__file__ or "").resolve().parent.parent), *(p for p in inherited if p)],
        "environ": {v.name: v.value for v in plan.variables if v.name != "HARNESS_SUPERVISOR"},
        "ops": list(plan.ops),
    }
    words = [sys.executable, str(scripts / "op_builder.py"), "--request", encode_request(request)]
    found = []
    for host in plan.hosts:
        if host.is_local:
            continue
        errors = (logs / f"ops-{host.name}.log").open("w+b")
        child = subprocess.Popen(  # noqa: S603
            ssh_command(host.name, words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        found.append(_RemoteBuilder(host.name, child, errors))
    return found


def _relay_build_events(builders: Sequence[_RemoteBuilder], services: LaunchContext) -> None:
    """Pass on what the hosts report until the last of them has ended or is silent for too long."""
    with selectors.DefaultSelector() as selector:
        for builder in builders:
            if builder.child.stdout is not None:
                selector.register(builder.child.stdout, selectors.EVENT_READ, builder)
        while selector.get_map():
            ready = selector.select(0.5)
            services.signals.raise_if_received()
            for key, _ in ready:
                if not _feed_output(key.data, os.read(key.fd, 65536), services):
                    selector.unregister(key.fileobj)
            for builder in builders:
                if builder.child.stdout is None or builder.child.stdout.fileno() not in selector.get_map():
                    continue
                if builder.op and not ready:
                    told = f"{builder.op} on {builder.host}"
                    services.observer.on_op_build(
                        told, time.monotonic() - builder.started_at, COMPILE_SECONDS.get(builder.op, 60)
                    )
                if time.monotonic() - builder.last_output > _SILENCE_SECONDS:
                    selector.unregister(builder.child.stdout)


def _feed_output(builder: _RemoteBuilder, chunk: bytes, services: LaunchContext) -> bool:
    """What a host says; False at its end."""
    builder.last_output = time.monotonic()
    *lines, builder.buffer = (builder.buffer + chunk).split(b"\n")
    for line in lines:
        if line.startswith(b'{"event"'):
            _handle_event(builder, json.loads(line), services)
    return bool(chunk)


def _handle_event(builder: _RemoteBuilder, event: dict[str, Any], services: LaunchContext) -> None:
    if event.get("event") == "start":
        builder.op, builder.started_at = str(event["op"]), time.monotonic()
    elif event.get("event") == "done":
        if event.get("compiled"):
            services.observer.on_op_built(f"{builder.op} on {builder.host}", time.monotonic() - builder.started_at)
        builder.op = ""
    elif event.get("event") in {"lock", "unloadable"}:
        report_leftover(event, services.observer, builder.host)
    elif event.get("event") == "failed":
        builder.failed_op, builder.op = str(event["op"]), ""


def _builder_findings(builder: _RemoteBuilder, plan: LaunchPlan) -> Iterator[Finding]:
    code = builder.child.poll()
    if builder.failed_op is None and not builder.op:
        try:
            code = builder.child.wait(5.0)  # its pipe is at its end
        except subprocess.TimeoutExpired:
            code = None
    log = plan.run_dir / "logs" / f"ops-{builder.host}.log"
    if code == 0:
        log.unlink(missing_ok=True)
        return
    builder.stderr_file.seek(0)
    words = builder.stderr_file.read().decode("utf-8", "replace").strip()[-_MAX_ERROR_CHARS:].splitlines()
    op = builder.failed_op or builder.op or plan.ops[0]
    yield Finding(
        "EN010",
        "error",
        f"DeepSpeed's op `{op}` cannot be compiled on {builder.host}",
        notes=(*([words[-1][:200].rstrip(".")] if words else []), f"all its words are in {log}"),
        fix=Fix("see `harness preflight` for what is missing there; most often a C++ compiler or CUDA's"),
    )
