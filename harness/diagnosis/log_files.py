# SPDX-License-Identifier: Apache-2.0
"""The name on the command line -> the logs to read: a file, a run, a folder of logs, standard input."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.run_records.plan_file import PLAN, read_plan
from harness.run_records.run_list import is_run_dir, known_runs_notes, resolve_run_path

_LOG_SUFFIXES = (".log", ".out", ".err", ".txt")
_MAX_FILES = 512


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of one job, in the order in which they are read, and the run directory where there is one."""

    files: tuple[Path, ...]
    run_dir: Path | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)

    def streams(self) -> Iterator[BinaryIO]:
        """Each file, open for reading while it is the current one."""
        if not self.files:
            yield sys.stdin.buffer
        for file in self.files:
            with file.open("rb") as stream:
                yield stream


def find_logs(name: str) -> LogFiles:
    """The logs that `name` stands for. Raises UserError where there are none or they cannot be read."""
    if name == "-":
        return LogFiles(())
    path = Path(name)
    try:
        path = resolve_run_path(name)
        if path.is_dir():
            return _find_in_folder(path)
        with path.open("rb"):
            return LogFiles((path,))
    except OSError as error:
        notes = () if path.exists() else known_runs_notes()
        fix = Fix("give a file, a run such as `latest`, or `-` for standard input")
        message = f"the log `{name}` cannot be read: {error.strerror or error}"
        raise UserError([Finding("SP001", "error", message, notes=notes, fix=fix)], ExitCode.USAGE) from None


def _find_in_folder(path: Path) -> LogFiles:
    launchers = [file for file in (path / "logs").glob("launcher*.log") if file.is_file() and not file.is_symlink()]
    if launchers:
        return LogFiles((max(launchers, key=_attempt_of),), path, read_plan(path)[0])
    in_run_dir = is_run_dir(path)  # it may come from somebody else: follow no links in it
    paths = (file for file in path.rglob("*") if file.suffix in _LOG_SUFFIXES and file.is_file())
    files = sorted(file for file in paths if not (in_run_dir and file.is_symlink()))
    if not files:
        message = f"the folder `{path}` has no logs"
        fix = Fix(f"logs are files that end in {', '.join(_LOG_SUFFIXES)}, or those of a run directory")
        raise UserError([Finding("SP001", "error", message, fix=fix)], ExitCode.USAGE)
    return LogFiles(tuple(files[:_MAX_FILES]), path if (path / PLAN).is_file() else None, read_plan(path)[0])


def _attempt_of(file: Path) -> int:
    match = re.search(r"-(\d+)\.log$", file.name)
    return int(match[1]) if match else 1
