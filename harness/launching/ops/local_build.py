# SPDX-License-Identifier: Apache-2.0
"""Compiles the ops that the ranks will load, in one process before any rank starts, so that no rank waits or races.

`harness.facts.required_ops` says which ops are needed, `build_cache` which of them are ready.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import ExitCode, UserError
from harness.facts.required_ops import CUDA_OPS, WITHOUT_NVCC
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.hostinfo.torch_extensions import find_planted_ops, torch_extensions_dir
from harness.interpreter import python_command
from harness.launching.ops.build_cache import ops_are_built
from harness.launching.ops.build_events import BuildProgress
from harness.launching.process.processes import find_run_processes, kill_all, send_signal
from harness.launching.setup.launch_context import LaunchContext
from harness.planted_files import PlantedFile


def ensure_ops(
    ops: Sequence[str], environ: Mapping[str, str], log: Path, context: LaunchContext, asked: Path | None = None
) -> None:
    """Make every op ready for this Python, compiling those that are not. `asked`: a `spec.resolved.json`, whose model's
    own code is asked before one compiles, as the ranks ask it.

    Raises UserError: of the model; exit code 4 when an op cannot be compiled (EN010) or another user may have written
    it (EN018). SignalInterrupt when a signal arrives.
    """
    root = torch_extensions_dir(environ)
    planted = find_planted_ops(root, ops) if ops else None
    if planted is not None:
        raise UserError([planted_ops_finding(planted)], ExitCode.PREFLIGHT)
    if not ops or ops_are_built(ops, root, environ):
        return
    context.signals.raise_if_received()
    context.observer.on_ops_check(ops)
    env = dict(environ)
    env.setdefault("MAX_JOBS", str(max(1, min(8, machine.usable_cores()))))
    env.pop("RANK", None)
    command = python_command(str(context.scripts / "op_builder.py"), *(["--ask", str(asked)] if asked else []), *ops)
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
    if progress.refused:
        raise UserError(progress.refused)
    if progress.planted is not None:
        raise UserError([planted_ops_finding(progress.planted)], ExitCode.PREFLIGHT)
    if progress.unwritable:
        raise UserError([unwritable_finding(progress.unwritable)], ExitCode.PREFLIGHT)
    if progress.failed_op is not None or code:
        accelerated = bool(machine.accelerators_for(environ))
        op = progress.failed_op or ops[0]
        compiler = shutil.which(environ.get("CXX") or "c++", path=environ.get("PATH"))
        finding = _build_failure_finding(
            op, code, log, progress.error, accelerated=accelerated, has_compiler=compiler is not None
        )
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


def planted_ops_finding(planted: PlantedFile, host: str = "") -> Finding:
    """The error EN018, on this machine or on another host."""
    fix = f"chmod -R go-w {planted.path}" if planted.is_own else "set TORCH_EXTENSIONS_DIR to a folder that you own"
    where = f"; it is on {host}" if host else ""
    return planted.to_finding("EN018", f"every rank would load the compiled ops there, with your rights{where}", fix)


def unwritable_finding(reason: str, host: str = "") -> Finding:
    """The error EN010 for a folder of ops that cannot be written, on this machine or on another host."""
    where = f" on {host}" if host else ""
    fix = Fix("let TORCH_EXTENSIONS_DIR name a folder that you can write, with 100 MB, or make room for it there")
    return Finding("EN010", "error", f"DeepSpeed's ops cannot be compiled{where}: {reason}", fix=fix)


def _build_failure_finding(
    op: str, code: int, log: Path, error: str, *, accelerated: bool, has_compiler: bool = True
) -> Finding:
    ending = f", the compiler process ended with code {code}" if code else ""
    hint = "install a C++ compiler (apt install g++)"
    if has_compiler:
        hint = "read the compiler's output; `harness doctor` lists what is missing"
    if op == "async_io":
        hint = "install the libaio headers (apt install libaio-dev)"
    if op in CUDA_OPS and accelerated:
        also = f"{hint} and " if op == "async_io" else ""
        hint = (
            f"{also}install the CUDA toolkit of the version that torch was built for (`torch.version.cuda`), with "
            f"`nvcc`, and let CUDA_HOME name its folder; without it: {WITHOUT_NVCC[op]}"
        )
    elif op in {"async_io", "pin_memory"}:
        hint += "; or do not offload to nvme"
    return Finding(
        "EN010",
        "error",
        f"DeepSpeed's op `{op}` cannot be compiled on this machine{ending}",
        notes=(*([error[:300].rstrip(".")] if error else []), f"the compiler's output is in {log}"),
        fix=Fix(hint),
    )
