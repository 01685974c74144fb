"""Compiles the ops that the ranks will load, in one process before any rank starts, so that no rank waits or races.

A stamp remembers what is ready: the second launch does not even import torch. Which ops are needed is said by
`harness.facts.required_ops`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from harness.errors import ExitCode, UserError
from harness.facts.required_ops import COMPILE_SECONDS
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.interpreter import python_command
from harness.launching.process.processes import find_run_processes, kill_all, pids_with_open_file, send_signal
from harness.launching.process.signals import Signals
from harness.launching.setup.launch_context import LaunchContext, LaunchObserver

_ELF_HEADER = struct.Struct("=40xQ10xHH2x")
"""Of 64-bit ELF: `e_shoff`, `e_shentsize` and `e_shnum`."""
LOCK_IDLE_SECONDS = 900.0
"""On a network file system a lock counts as abandoned when nothing was written beside it for so long."""


def find_op_folders(root: Path, ops: Sequence[str] | None = None) -> list[Path]:
    """Folders of compiled ops below `root`, of all or of the named ones."""
    found = [p for pattern in ("*/build.ninja", "*/*/build.ninja") for p in root.glob(pattern)]
    found += [p for pattern in ("*/lock", "*/*/lock") for p in root.glob(pattern)]
    return sorted({p.parent for p in found if ops is None or p.parent.name in ops})


def find_stale_locks(root: Path, ops: Sequence[str] | None = None) -> list[Path]:
    """Locks that no living process holds. torch keeps the file open for as long as it holds the lock (`FileBaton`)."""
    locks = [folder / "lock" for folder in find_op_folders(root, ops) if (folder / "lock").exists()]
    idle = [lock for lock in locks if not pids_with_open_file(lock)]
    if idle:
        time.sleep(0.3)  # a lock that is just being taken or given back
    return [lock for lock in idle if lock.exists() and not pids_with_open_file(lock)]


def remove_stale_locks(root: Path, ops: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """Every stale lock of these ops, and whether it was removed. On a network file system a process of another host may
    hold it: there it stays until nothing has been written beside it for `QUIET_SECONDS`.
    """
    for lock in find_stale_locks(root, ops):
        newest = max((p.stat().st_mtime for p in lock.parent.iterdir()), default=0.0)
        kept = machine.is_on_network_filesystem(lock) and time.time() - newest < LOCK_IDLE_SECONDS
        if not kept:
            lock.unlink(missing_ok=True)
        yield lock, not kept


def remove_truncated_libraries(root: Path, ops: Sequence[str]) -> Iterator[str]:
    """Remove the libraries that end too early, as after a full disk, and name each op. ninja would take them for
    compiled, and loading one is a crash. One that is being linked now is left alone.
    """
    for folder in find_op_folders(root, ops):
        library = folder / f"{folder.name}.so"
        if library.exists() and not (folder / "lock").exists() and not _is_complete_elf(library):
            library.unlink(missing_ok=True)
            yield folder.name


def _is_complete_elf(library: Path) -> bool:
    """Whether an ELF file reaches to the end of its table of sections, which linkers write last."""
    with library.open("rb") as file:
        head = file.read(_ELF_HEADER.size)
    if len(head) < _ELF_HEADER.size or not head.startswith(b"\x7fELF"):
        return False
    table, size, count = _ELF_HEADER.unpack(head)
    return library.stat().st_size >= int(table + size * count)


def remove_op(root: Path, op: str) -> None:
    """Remove all that was compiled of an op."""
    for folder in find_op_folders(root, [op]):
        shutil.rmtree(folder, ignore_errors=True)


def ensure_ops(ops: Sequence[str], environ: Mapping[str, str], log: Path, services: LaunchContext) -> None:
    """Make every op ready for this Python, compiling what is not.

    Raises Refused (exit code 4) when one cannot be compiled, Interrupted when a signal came meanwhile.
    """
    root = torch_extensions_dir(environ)
    if not ops or ops_are_built(ops, root, environ):
        return
    services.signals.raise_if_received()
    services.observer.on_ops_check(ops)
    env = dict(environ)
    env.setdefault("MAX_JOBS", str(max(1, min(8, machine.usable_cores()))))
    env.pop("RANK", None)
    command = python_command(str(services.scripts / "op_builder.py"), *ops)
    with log.open("ab") as stderr:
        builder = subprocess.Popen(  # noqa: S603
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
        try:
            failed = _relay_build_events(builder, services)
            code = builder.wait()
        finally:
            _terminate_builder(builder)
    if failed is not None or code:
        accelerated = bool(machine.accelerators_for(environ))
        raise UserError(
            [_build_failure_finding(failed or ops[0], code, log, accelerated=accelerated)], ExitCode.PREFLIGHT
        )


def report_leftover(event: Mapping[str, Any], onlooker: LaunchObserver, host: str = "") -> None:
    """Pass on what a builder on `host` (nothing: this machine) found left over and in the way."""
    if event.get("event") == "lock":
        said = onlooker.on_lock_removed if event.get("removed") else onlooker.on_lock_kept
        said(Path(str(event["file"])), host)
    elif event.get("event") == "unloadable":
        onlooker.on_op_unloadable(str(event["op"]), str(event.get("error", "")), host)


def _relay_build_events(builder: subprocess.Popen[bytes], services: LaunchContext) -> str | None:
    """Pass on what the builder reports until it ends; returns the op that failed."""
    op, began = "", time.monotonic()
    onlooker = services.observer
    for event in _read_events(builder, services.signals):
        if event is None:
            if op:
                onlooker.on_op_build(op, time.monotonic() - began, COMPILE_SECONDS.get(op, 60))
        elif event.get("event") == "start":
            op, began = str(event["op"]), time.monotonic()
        elif event.get("event") in {"lock", "unloadable"}:
            report_leftover(event, onlooker)
        elif event.get("event") == "done":
            if event.get("compiled"):
                onlooker.on_op_built(op, time.monotonic() - began)
            op = ""
        elif event.get("event") == "failed":
            return str(event["op"])
    return None


def _read_events(builder: subprocess.Popen[bytes], signals: Signals) -> Iterator[dict[str, Any] | None]:
    """The builder's lines as they come, and None every half second between them. Raises Interrupted."""
    pipe: IO[bytes] | None = builder.stdout
    if pipe is None:
        return
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        buffer = b""
        while True:
            ready = selector.select(0.5)
            signals.raise_if_received()
            if not ready:
                yield None
                continue
            chunk = os.read(pipe.fileno(), 65536)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b'{"event"'):
                    yield json.loads(line)


def _terminate_builder(builder: subprocess.Popen[bytes]) -> None:
    """End the builder and its compilers, gently first: on SIGINT it gives back its lock, ninja removes torn files."""
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


def build_stamp_file(root: Path) -> Path:
    """Where it is remembered which compiled files were seen to load."""
    return root / "deepspeed-harness.json"


def build_stamp_key(environ: Mapping[str, str]) -> str:
    """What ops depend on and torch's cache does not tell apart: Python, torch, DeepSpeed, processor, compiler."""
    parts = [
        sys.executable,
        sys.version,
        str(machine.package_version("torch")),
        str(machine.package_version("deepspeed")),
        str(shutil.which("ninja", path=environ.get("PATH"))),
        machine.cpu_model(),
        " ".join(sorted(machine.cpu_flags())),
        *(
            environ.get(name, "")
            for name in ("DS_ACCELERATOR", "CXX", "CXXFLAGS", "CFLAGS", "LDFLAGS", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST")
        ),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def ops_are_built(ops: Sequence[str], root: Path, environ: Mapping[str, str]) -> bool:
    """Whether the stamp knows every op for this environment and its file has not changed since."""
    try:
        known = json.loads(build_stamp_file(root).read_text(encoding="utf-8"))[build_stamp_key(environ)]
        locked = any((folder / "lock").exists() for folder in find_op_folders(root, ops))
        return not locked and all(_is_unchanged(known[op]) for op in ops)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_unchanged(record: Mapping[str, Any]) -> bool:
    stat = Path(record["file"]).stat()
    return bool(stat.st_mtime_ns == record["mtime_ns"] and stat.st_size == record["size"])


def _build_failure_finding(op: str, code: int, log: Path, *, accelerated: bool) -> Finding:
    how = f", the compiler process ended with code {code}" if code else ""
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
        f"DeepSpeed's op `{op}` cannot be compiled on this machine{how}",
        notes=(f"the compiler's words are in {log}",),
        fix=Fix(hints.get(op, "see `harness doctor` for what is missing; most often a C++ compiler (apt install g++)")),
    )
