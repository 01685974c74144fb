"""Has every other host compile the ops that its ranks will load, once and before they start, by `launch/build_ops.py`.

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
from harness.errors import Exit, Refused
from harness.findings import Finding, Fix
from harness.launching.build import tell
from harness.launching.onlooker import Services
from harness.launching.ops import SECONDS
from harness.launching.plan import LaunchPlan
from harness.launching.remote import encoded, ssh

_SILENCE_SECONDS = 1800.0
"""An op that takes longer to compile is not compiling any more."""
_MOST_WORDS = 4000


@dataclass(slots=True)
class _Builder:
    host: str
    child: subprocess.Popen[bytes]
    errors: IO[bytes]
    op: str = ""
    began: float = 0.0
    heard: float = field(default_factory=time.monotonic)
    rest: bytes = b""
    failed: str | None = None


@contextlib.contextmanager
def compiling_on_hosts(plan: LaunchPlan, services: Services) -> Iterator[None]:
    """While entered the hosts other than this machine make their ops ready; leaving it waits for all of them.

    Raises Refused (EN010, exit code 4) when one cannot, Interrupted when a signal came meanwhile.
    """
    builders = _start(plan, services.scripts, plan.run_dir / "logs") if plan.ops and plan.reaches else []
    try:
        yield
        _follow(builders, services)
        found = [finding for builder in builders for finding in _judge(builder, plan)]
        if found:
            raise Refused(found, Exit.PREFLIGHT)
    finally:
        for builder in builders:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(builder.child.pid, signal.SIGKILL)
            builder.child.wait()
            builder.errors.close()
            if builder.child.stdout is not None:
                builder.child.stdout.close()


def _start(plan: LaunchPlan, scripts: Path, logs: Path) -> list[_Builder]:
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    request = {
        "path": [str(Path(harness.__file__ or "").resolve().parent.parent), *(p for p in inherited if p)],
        "environ": {v.name: v.value for v in plan.variables if v.name != "HARNESS_SUPERVISOR"},
        "ops": list(plan.ops),
    }
    words = [sys.executable, str(scripts / "build_ops.py"), "--request", encoded(request)]
    found = []
    for host in plan.hosts:
        if host.here:
            continue
        errors = (logs / f"ops-{host.name}.log").open("w+b")
        child = subprocess.Popen(  # noqa: S603
            ssh(host.name, words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        found.append(_Builder(host.name, child, errors))
    return found


def _follow(builders: Sequence[_Builder], services: Services) -> None:
    """Pass on what the hosts report until the last of them has ended or is silent for too long."""
    with selectors.DefaultSelector() as selector:
        for builder in builders:
            if builder.child.stdout is not None:
                selector.register(builder.child.stdout, selectors.EVENT_READ, builder)
        while selector.get_map():
            ready = selector.select(0.5)
            services.signals.check()
            for key, _ in ready:
                if not _read(key.data, os.read(key.fd, 65536), services):
                    selector.unregister(key.fileobj)
            for builder in builders:
                if builder.child.stdout is None or builder.child.stdout.fileno() not in selector.get_map():
                    continue
                if builder.op and not ready:
                    told = f"{builder.op} on {builder.host}"
                    services.onlooker.compiling(told, time.monotonic() - builder.began, SECONDS.get(builder.op, 60))
                if time.monotonic() - builder.heard > _SILENCE_SECONDS:
                    selector.unregister(builder.child.stdout)


def _read(builder: _Builder, chunk: bytes, services: Services) -> bool:
    """What a host says; False at its end."""
    builder.heard = time.monotonic()
    *lines, builder.rest = (builder.rest + chunk).split(b"\n")
    for line in lines:
        if line.startswith(b'{"event"'):
            _hear(builder, json.loads(line), services)
    return bool(chunk)


def _hear(builder: _Builder, event: dict[str, Any], services: Services) -> None:
    if event.get("event") == "start":
        builder.op, builder.began = str(event["op"]), time.monotonic()
    elif event.get("event") == "done":
        if event.get("compiled"):
            services.onlooker.compiled(f"{builder.op} on {builder.host}", time.monotonic() - builder.began)
        builder.op = ""
    elif event.get("event") in {"lock", "unloadable"}:
        tell(event, services.onlooker, builder.host)
    elif event.get("event") == "failed":
        builder.failed, builder.op = str(event["op"]), ""


def _judge(builder: _Builder, plan: LaunchPlan) -> Iterator[Finding]:
    code = builder.child.poll()
    if builder.failed is None and not builder.op:
        try:
            code = builder.child.wait(5.0)  # its pipe is at its end
        except subprocess.TimeoutExpired:
            code = None
    log = plan.run_dir / "logs" / f"ops-{builder.host}.log"
    if code == 0:
        log.unlink(missing_ok=True)
        return
    builder.errors.seek(0)
    words = builder.errors.read().decode("utf-8", "replace").strip()[-_MOST_WORDS:].splitlines()
    op = builder.failed or builder.op or plan.ops[0]
    yield Finding(
        "EN010",
        "error",
        f"DeepSpeed's op `{op}` cannot be compiled on {builder.host}",
        notes=(*([words[-1][:200].rstrip(".")] if words else []), f"all its words are in {log}"),
        fix=Fix("see `harness preflight` for what is missing there; most often a C++ compiler or CUDA's"),
    )
