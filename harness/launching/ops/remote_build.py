# SPDX-License-Identifier: Apache-2.0
"""Compiles the ops on every other host, once and before its ranks start: `op_builder.py` through ssh.

As many hosts as preflight asks work at the same time; one that has every op ready answers without importing torch.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.facts.environment_variables import is_secret
from harness.findings import Finding, Fix
from harness.launching.hosts.ssh import FAN_OUT, encode_request, remote_python_path, ssh_command
from harness.launching.ops.build_events import BuildProgress
from harness.launching.ops.local_build import planted_ops_finding, unwritable_finding
from harness.launching.process.parallel_children import ChildOutput, ChildPool
from harness.launching.setup.environment import Variable
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import LaunchPlan

_SILENCE_SECONDS = 1800.0
"""Limit for one op; a longer compilation hangs."""
_MAX_ERROR_CHARS = 4000
_REPORT_SECONDS = 0.5


@dataclass(slots=True)
class _RemoteBuilds:
    """The builders of all other hosts: at most `FAN_OUT` of them run at a time, each an ssh on this machine."""

    plan: LaunchPlan
    context: LaunchContext
    pool: ChildPool = field(init=False)
    progress: list[BuildProgress] = field(init=False)

    def __post_init__(self) -> None:
        hosts = [host.name for host in self.plan.hosts if not host.is_local]
        self.progress = [BuildProgress(host) for host in hosts]
        command = _builder_command(self.plan, self.context.scripts)
        self.pool = ChildPool(
            (ssh_command(host, command) for host in hosts),
            b"",
            _SILENCE_SECONDS,
            FAN_OUT,
            _MAX_ERROR_CHARS,
            os.environ,
            self._on_output,
        )

    def wait(self) -> None:
        """Pass on the events of all builders until the last of them has ended or is silent for too long."""
        last_report = time.monotonic()
        while self.pool.poll():
            self.context.signals.raise_if_received()
            if time.monotonic() - last_report < _REPORT_SECONDS:
                continue
            last_report = time.monotonic()
            for index, progress in enumerate(self.progress):
                if index not in self.pool.results:
                    progress.report(self.context.observer)

    def findings(self) -> Iterator[Finding]:
        """One for each host that cannot; removes the logs of the others."""
        for index, progress in enumerate(self.progress):
            log, output = _log_of(self.plan, progress.host), self.pool.results[index]
            if output.code == 0:
                log.unlink(missing_ok=True)
            elif progress.planted is not None:
                yield planted_ops_finding(progress.planted, progress.host)
            elif progress.unwritable:
                yield unwritable_finding(progress.unwritable, progress.host)
            else:
                yield _not_compiled(self.plan, progress, output, log)

    def _on_output(self, index: int, chunk: bytes, is_stderr: bool) -> None:
        progress = self.progress[index]
        if not is_stderr:
            progress.feed(chunk, self.context.observer)
            return
        with _log_of(self.plan, progress.host).open("ab") as log:
            log.write(chunk)


@contextlib.contextmanager
def build_on_hosts(plan: LaunchPlan, context: LaunchContext) -> Iterator[None]:
    """While entered the hosts other than this machine make their ops ready; leaving it waits for all of them.

    Raises UserError (EN010, EN018, exit code 4) when one cannot, SignalInterrupt when a signal arrives.
    """
    if not plan.ops or not plan.starts_remote_ranks:
        yield
        return
    builds = _RemoteBuilds(plan, context)
    with builds.pool:
        builds.pool.start()
        yield
        builds.wait()
    if findings := list(builds.findings()):
        raise UserError(findings, ExitCode.PREFLIGHT)


def _builder_command(plan: LaunchPlan, scripts: Path) -> list[str]:
    request = {
        "path": remote_python_path(os.environ),
        "environ": {v.name: v.value for v in plan.variables if _is_for_builder(v)},
        "ops": list(plan.ops),
    }
    return [sys.executable, str(scripts / "op_builder.py"), "--request", encode_request(request)]


def _log_of(plan: LaunchPlan, host: str) -> Path:
    return plan.run_dir / "logs" / f"ops-{host}.log"


def _is_for_builder(variable: Variable) -> bool:
    """A compiler needs no secret, and everybody on the hosts can list the command line with the request."""
    return variable.name != "HARNESS_SUPERVISOR" and not is_secret(variable.name, variable.value)


def _not_compiled(plan: LaunchPlan, progress: BuildProgress, output: ChildOutput, log: Path) -> Finding:
    error_lines = output.err.decode("utf-8", "replace").strip().splitlines()
    if output.error is not None:
        error_lines = [f"ssh cannot be started: {output.error.strerror}"]
    op = progress.failed_op or progress.op or plan.ops[0]
    return Finding(
        "EN010",
        "error",
        f"DeepSpeed's op `{op}` cannot be compiled on {progress.host}",
        notes=(
            *([error_lines[-1][:200].rstrip(".")] if error_lines else []),
            *([f"its output is in {log}"] if log.exists() else []),
        ),
        fix=Fix("see `harness preflight` for what is missing there, such as a C++ compiler or CUDA's"),
    )
