# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled ops: stale locks, truncated libraries, and the stamp of ops that are ready.

The stamp lets the second launch start without importing torch. Compiles nothing; torch makes the folders.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.hostinfo import machine
from harness.hostinfo.torch_extensions import STAMP
from harness.launching.process.processes import pids_with_open_file

_OWN_SOURCE = Path(__file__).parents[2] / "patches" / "one_pass_adam.cpp"
_ELF_HEADER = struct.Struct("=40xQ10xHH2x")
"""Of 64-bit ELF: `e_shoff`, `e_shentsize` and `e_shnum`."""
LOCK_IDLE_SECONDS = 900.0
"""On a network file system a lock is stale after this many seconds without a write to its folder."""


def find_op_folders(root: Path, ops: Sequence[str] | None = None) -> list[Path]:
    """Folders of compiled ops below `root`, of all or of the named ones."""
    patterns = ("*/build.ninja", "*/*/build.ninja", "*/lock", "*/*/lock")
    folders = {path.parent for pattern in patterns for path in root.glob(pattern)}
    return sorted(folder for folder in folders if ops is None or folder.name in ops)


def find_stale_locks(root: Path, ops: Sequence[str] | None = None) -> list[Path]:
    """Locks that no living process holds. torch keeps the file open for as long as it holds the lock (`FileBaton`)."""
    locks = [folder / "lock" for folder in find_op_folders(root, ops) if (folder / "lock").exists()]
    idle = [lock for lock in locks if not pids_with_open_file(lock)]
    if idle:
        time.sleep(0.3)  # a lock that is just being taken or given back
    return [lock for lock in idle if lock.exists() and not pids_with_open_file(lock)]


def remove_stale_locks(root: Path, ops: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """Every stale lock of these ops, and whether it was removed. On a network file system a process of another host may
    hold it: there it stays until nothing in its folder has been written for `LOCK_IDLE_SECONDS`.
    """
    for lock in find_stale_locks(root, ops):
        newest = max((p.stat().st_mtime for p in lock.parent.iterdir()), default=0.0)
        is_removable = not machine.is_on_network_filesystem(lock) or time.time() - newest >= LOCK_IDLE_SECONDS
        if is_removable:
            lock.unlink(missing_ok=True)
        yield lock, is_removable


def remove_truncated_libraries(root: Path, ops: Sequence[str]) -> Iterator[str]:
    """Remove the libraries that end too early, as after a full disk, and name each op. ninja would take them for
    compiled, and loading one crashes. One that is being linked is left alone.
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
    """Remove the compiled files of an op."""
    for folder in find_op_folders(root, [op]):
        shutil.rmtree(folder, ignore_errors=True)


def build_stamp_file(root: Path) -> Path:
    """The stamp file: compiled files that have been loaded once, by environment."""
    return root / STAMP


def build_stamp_key(environ: Mapping[str, str]) -> str:
    """A hash of what ops depend on and torch's cache ignores: Python, torch, DeepSpeed, our op, processor, devices and
    compiler.

    The folder of ops has the devices in its name, but one that TORCH_EXTENSIONS_DIR names may be in a shared home.
    """
    parts = [
        sys.executable,
        sys.version,
        str(machine.package_version("torch")),
        str(machine.package_version("deepspeed")),
        hashlib.sha256(_OWN_SOURCE.read_bytes()).hexdigest(),
        str(shutil.which("ninja", path=environ.get("PATH"))),
        machine.cpu_model(),
        " ".join(sorted(machine.cpu_flags())),
        "" if machine.is_cpu_forced(environ) else ",".join(machine.accelerator_models()),
        *(
            environ.get(name, "")
            for name in ("DS_ACCELERATOR", "CXX", "CXXFLAGS", "CFLAGS", "LDFLAGS", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST")
        ),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def ops_are_built(ops: Sequence[str], root: Path, environ: Mapping[str, str]) -> bool:
    """Whether the stamp has every op for this environment, and no file has changed since."""
    try:
        records = json.loads(build_stamp_file(root).read_text(encoding="utf-8"))[build_stamp_key(environ)]
        locked = any((folder / "lock").exists() for folder in find_op_folders(root, ops))
        return not locked and all(_is_unchanged(records[op]) for op in ops)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_unchanged(record: Mapping[str, Any]) -> bool:
    stat = Path(record["file"]).stat()
    return bool(stat.st_mtime_ns == record["mtime_ns"] and stat.st_size == record["size"])
