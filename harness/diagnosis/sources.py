"""What is named on the command line -> the logs to read: a file, a run directory, a folder of logs, standard input."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from harness.errors import Exit, Refused
from harness.findings import Finding, Fix
from harness.records.listing import is_run_dir
from harness.records.plan_file import NAME as PLAN
from harness.records.plan_file import read_plan

_LOGS = (".log", ".out", ".err", ".txt")
_MOST = 512


@dataclass(frozen=True, slots=True)
class Logs:
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


def find_logs(name: str) -> Logs:
    """The logs that `name` stands for. Raises Refused where there are none or they cannot be read."""
    if name == "-":
        return Logs(())
    path = Path(name)
    try:
        if path.is_dir():
            return _in_folder(path)
        with path.open("rb"):
            return Logs((path,))
    except OSError as error:
        fix = Fix("give a file, a run directory, or `-` for standard input")
        message = f"the log `{name}` cannot be read: {error.strerror or error}"
        raise Refused([Finding("SP001", "error", message, fix=fix)], Exit.USAGE) from None


def _in_folder(path: Path) -> Logs:
    launchers = [file for file in (path / "logs").glob("launcher*.log") if file.is_file() and not file.is_symlink()]
    if launchers:
        return Logs((max(launchers, key=_attempt),), path, read_plan(path)[0])
    foreign = is_run_dir(path)  # which somebody else may have made; logs of one's own may well be links
    found = (file for file in path.rglob("*") if file.suffix in _LOGS and file.is_file())
    files = sorted(file for file in found if not (foreign and file.is_symlink()))
    if not files:
        message = f"the folder `{path}` holds no logs"
        fix = Fix(f"logs are files that end in {', '.join(_LOGS)}, or those of a run directory")
        raise Refused([Finding("SP001", "error", message, fix=fix)], Exit.USAGE)
    return Logs(tuple(files[:_MOST]), path if (path / PLAN).is_file() else None, read_plan(path)[0])


def _attempt(file: Path) -> int:
    match = re.search(r"-(\d+)\.log$", file.name)
    return int(match[1]) if match else 1
