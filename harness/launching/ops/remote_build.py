# SPDX-License-Identifier: Apache-2.0
"""Compiles the ops on every other host, once and before its ranks start: `op_builder.py` through ssh.

All hosts work at once; one that has every op ready answers without importing torch.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from harness.errors import ExitCode, UserError
from harness.facts.secret_names import is_secret
from harness.findings import Finding, Fix
from harness.launching.hosts.ssh import encode_request, remote_python_path, ssh_command
from harness.launching.ops.build_events import BuildProgress
from harness.launching.ops.local_build import planted_ops_finding
from harness.launching.setup.environment import Variable
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import LaunchPlan

_SILENCE_SECONDS = 1800.0
"""Limit for one op; a longer compilation hangs."""
_MAX_ERROR_CHARS = 4000


@dataclass(slots=True)
class _RemoteBuilder:
    child: subprocess.Popen[bytes]
    stderr_file: IO[bytes]
    progress: BuildProgress
    last_output: float = field(default_factory=time.monotonic)


@contextlib.contextmanager
def build_on_hosts(plan: LaunchPlan, context: LaunchContext) -> Iterator[None]:
    """While entered the hosts other than this machine make their ops ready; leaving it waits for all of them.

    Raises UserError (EN010, EN018, exit code 4) when one cannot, SignalInterrupt when a signal arrives.
    """
    builders = (
        _start_builders(plan, context.scripts, plan.run_dir / "logs") if plan.ops and plan.starts_remote_ranks else []
    )
    try:
        yield
        _relay_build_events(builders, context)
        findings = [finding for builder in builders for finding in _builder_findings(builder, plan)]
        if findings:
            raise UserError(findings, ExitCode.PREFLIGHT)
    finally:
        for builder in builders:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(builder.child.pid, signal.SIGKILL)
            builder.child.wait()
            builder.stderr_file.close()
            if builder.child.stdout is not None:
                builder.child.stdout.close()


def _start_builders(plan: LaunchPlan, scripts: Path, logs: Path) -> list[_RemoteBuilder]:
    request = {
        "path": remote_python_path(os.environ),
        "environ": {v.name: v.value for v in plan.variables if _is_for_builder(v)},
        "ops": list(plan.ops),
    }
    command = [sys.executable, str(scripts / "op_builder.py"), "--request", encode_request(request)]
    builders = []
    for host in plan.hosts:
        if host.is_local:
            continue
        stderr = (logs / f"ops-{host.name}.log").open("w+b")
        child = subprocess.Popen(  # noqa: S603
            ssh_command(host.name, command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
        builders.append(_RemoteBuilder(child, stderr, BuildProgress(host.name)))
    return builders


def _is_for_builder(variable: Variable) -> bool:
    """A compiler needs no secret, and everybody on the hosts can list the command line with the request."""
    return variable.name != "HARNESS_SUPERVISOR" and not is_secret(variable.name, variable.value)


def _relay_build_events(builders: Sequence[_RemoteBuilder], context: LaunchContext) -> None:
    """Pass on the events of all builders until the last of them has ended or is silent for too long."""
    with selectors.DefaultSelector() as selector:
        for builder in builders:
            if builder.child.stdout is not None:
                selector.register(builder.child.stdout, selectors.EVENT_READ, builder)
        while selector.get_map():
            ready = selector.select(0.5)
            context.signals.raise_if_received()
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                key.data.last_output = time.monotonic()
                key.data.progress.feed(chunk, context.observer)
                if not chunk:
                    selector.unregister(key.fileobj)
            for builder in builders:
                if builder.child.stdout is None or builder.child.stdout.fileno() not in selector.get_map():
                    continue
                if not ready:
                    builder.progress.report(context.observer)
                if time.monotonic() - builder.last_output > _SILENCE_SECONDS:
                    selector.unregister(builder.child.stdout)


def _builder_findings(builder: _RemoteBuilder, plan: LaunchPlan) -> Iterator[Finding]:
    host, progress = builder.progress.host, builder.progress
    code = builder.child.poll()
    if progress.failed_op is None and not progress.op:
        try:
            code = builder.child.wait(5.0)  # its pipe is at its end
        except subprocess.TimeoutExpired:
            code = None
    log = plan.run_dir / "logs" / f"ops-{host}.log"
    if code == 0:
        log.unlink(missing_ok=True)
        return
    if progress.planted is not None:
        yield planted_ops_finding(progress.planted, host)
        return
    builder.stderr_file.seek(0)
    error_lines = builder.stderr_file.read().decode("utf-8", "replace").strip()[-_MAX_ERROR_CHARS:].splitlines()
    op = progress.failed_op or progress.op or plan.ops[0]
    yield Finding(
        "EN010",
        "error",
        f"DeepSpeed's op `{op}` cannot be compiled on {host}",
        notes=(*([error_lines[-1][:200].rstrip(".")] if error_lines else []), f"its output is in {log}"),
        fix=Fix("`harness preflight` lists what is missing there; most often a C++ compiler or CUDA's"),
    )
