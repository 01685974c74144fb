# SPDX-License-Identifier: Apache-2.0
"""Compiles the ops that the ranks will load, in one process before any rank starts, so that no rank waits or races.

`harness.facts.required_ops` says which ops are needed, `build_cache` which of them are ready.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.interpreter import python_command
from harness.launching.ops.build_cache import ops_are_built
from harness.launching.ops.build_events import BuildProgress
from harness.launching.process.processes import find_run_processes, kill_all, send_signal
from harness.launching.setup.launch_context import LaunchContext


def ensure_ops(ops: Sequence[str], environ: Mapping[str, str], log: Path, context: LaunchContext) -> None:
    """Make every op ready for this Python, compiling those that are not.

    Raises UserError (exit code 4) when one cannot be compiled, SignalInterrupt when a signal arrives.
    """
    if not ops or ops_are_built(ops, torch_extensions_dir(environ), environ):
        return
    context.signals.raise_if_received()
    context.observer.on_ops_check(ops)
    env = dict(environ)
    env.setdefault("MAX_JOBS", str(max(1, min(8, machine.usable_cores()))))
    env.pop("RANK", None)
    command = python_command(str(context.scripts / "op_builder.py"), *ops)
    progress = BuildProgress()
    with log.open("ab") as stderr:
        builder = subprocess.Popen(  # noqa: S603
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
        try:
            _relay_build_events(builder, progress, context)
            code = builder.wait()
        finally:
            _terminate_builder(builder)
    if progress.failed_op is not None or code:
        accelerated = bool(machine.accelerators_for(environ))
        finding = _build_failure_finding(progress.failed_op or ops[0], code, log, accelerated=accelerated)
        raise UserError([finding], ExitCode.PREFLIGHT)


def _relay_build_events(builder: subprocess.Popen[bytes], progress: BuildProgress, context: LaunchContext) -> None:
    """Pass on the builder's events until it ends or an op fails; every half second without one, its progress."""
    if builder.stdout is None:
        return
    with selectors.DefaultSelector() as selector:
        selector.register(builder.stdout, selectors.EVENT_READ)
        while progress.failed_op is None:
            is_ready = selector.select(0.5)
            context.signals.raise_if_received()
            if not is_ready:
                progress.report(context.observer)
                continue
            chunk = os.read(builder.stdout.fileno(), 65536)
            if not chunk:
                return
            progress.feed(chunk, context.observer)


def _terminate_builder(builder: subprocess.Popen[bytes]) -> None:
    """End the builder and its compilers. SIGINT comes first: the builder then releases its lock, and ninja removes
    unfinished files.
    """
    session = builder.pid

    def living() -> list[Any]:
        return find_run_processes(Path("/nonexistent"), session)

    if builder.poll() is None:
        send_signal(living(), signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            builder.wait(3.0)
    kill_all(living, 0.5)
    builder.wait()
    if builder.stdout is not None:
        builder.stdout.close()


def _build_failure_finding(op: str, code: int, log: Path, *, accelerated: bool) -> Finding:
    ending = f", the compiler process ended with code {code}" if code else ""
    hints = {
        "async_io": "install the libaio headers (apt install libaio-dev), or do not offload to nvme",
        "pin_memory": "install a C++ compiler (apt install g++), or do not offload to nvme",
    }
    if op in {"fused_adam", "cpu_adam"} and accelerated:
        hints[op] = (
            "install the CUDA toolkit of the version that torch was built for (`torch.version.cuda`), with `nvcc`, "
            "and let CUDA_HOME name its folder"
        )
    return Finding(
        "EN010",
        "error",
        f"DeepSpeed's op `{op}` cannot be compiled on this machine{ending}",
        notes=(f"the compiler's output is in {log}",),
        fix=Fix(hints.get(op, "see `harness doctor` for what is missing; most often a C++ compiler (apt install g++)")),
    )
