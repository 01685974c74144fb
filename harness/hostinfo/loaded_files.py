# SPDX-License-Identifier: Apache-2.0
"""The files that a process has loaded as code, and whether another one would load the same: for kept answers.

A release number does not tell one edited or overlaid package from another. A file counts as the same while its size and
its times of change and of status are: Python itself reads no source again whose size and time of change are as before.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.interpreter import find_new_module

_TICK_SECONDS = 0.05
"""More than the clock of files is behind that of `time.time`."""
_MAPS = Path("/proc/self/maps")


def list_loaded_files(since: float) -> dict[str, Any] | None:
    """The record that `are_loaded_files_the_same` compares: `files`, with [size, ns of change, ns of status] by path,
    of all modules and shared libraries of this process, and `modules`, the file by top-level name. None if a file is
    missing or has changed after `since` (seconds of `time.time`): the process may have loaded what it was before.
    """
    modules = {name: file for name, file in _module_files() if "." not in name and _find_file(name) == file}
    files: dict[str, list[int]] = {}
    for file in sorted({*(file for _, file in _module_files()), *_mapped_libraries()}):
        stamp = _stamp(file)
        if stamp is None or max(stamp[1:]) >= (since - _TICK_SECONDS) * 1e9:
            return None
        files[file] = stamp
    return {"files": files, "modules": modules}


def are_loaded_files_the_same(loaded: Mapping[str, Any] | None) -> bool:
    """Would this Python load the same files, unchanged? False where nothing is known."""
    if not loaded:
        return False
    files, modules = loaded["files"], loaded["modules"]
    if any(_stamp(file) != stamp for file, stamp in files.items()):
        return False
    return all(_find_file(name) == file for name, file in modules.items())


def _module_files() -> Iterator[tuple[str, str]]:
    """(name, file) of each module, without those in the temporary folder, which torch writes for itself."""
    temporary = tempfile.gettempdir() + os.sep
    for name, module in tuple(sys.modules.items()):
        file = getattr(getattr(module, "__spec__", None), "origin", None)
        if isinstance(file, str) and Path(file).is_absolute() and not file.startswith(temporary):
            yield name, file


def _mapped_libraries() -> Iterator[str]:
    temporary = tempfile.gettempdir() + os.sep
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if (
            len(fields) == 6
            and ".so" in fields[5]
            and fields[5].startswith("/")
            and not fields[5].startswith(temporary)
        ):
            yield fields[5]


def _stamp(file: str) -> list[int] | None:
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _find_file(name: str) -> str | None:
    spec = find_new_module(name)
    return None if spec is None else spec.origin
