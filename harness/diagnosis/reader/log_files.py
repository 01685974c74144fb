# SPDX-License-Identifier: Apache-2.0
"""The names on the command line -> the logs to read: files, a run, folders of logs, standard input."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.folder_walk import walk_files
from harness.run_records.plan_file import PLAN, read_plan
from harness.run_records.run_list import is_run_dir, known_runs_notes, resolve_run_path

_LOG_NAME = re.compile(
    r"(?:\.(?:log|out|err|txt|stdout|stderr)(?:[.-]\d+)?|\.[oe]\d+|^(?:dmesg|messages|syslog|kern|journal|events)[\w.-]*"
    r"|^(?:std(?:out|err)|nccl_trace|comm_lib_trace|py-?spy|stacks)[\w.-]*|^error\.json)(?:\.(?:gz|bz2|xz|zst))?$"
    r"|\.(?:zip|tar|tgz|tar\.gz|tar\.xz|tar\.bz2|tar\.zst)$"
)
_LOG_NAMES_IN_WORDS = ".log, .out, .err, .txt, also with a number or compressed, dmesg, nccl_trace_rank_N"
_MAX_FILES = 12_288
_SMALL_HOLE = 16 << 20
"""Bytes of a hole that are read like any others."""
_ROTATION = re.compile(r"\.(\d{1,3})(?:\.(?:gz|bz2|xz|zst))?$")
_ATTEMPT = re.compile(r"(?:attempt|restart)[_-]?(\d{1,4})\b|launcher-(\d{1,4})\.log")
_LOCAL_RANK_FOLDER = re.compile(r"attempt_\d+/(\d{1,5})/(?:std(?:out|err)\.log|error\.json)")
_RANK = re.compile(r"(?:^|[/_.-])rank[_-]?(\d{1,5})(?!\d)")
_LOG_SUFFIX = re.compile(r"(?:\.(?:log|out|err|txt|gz|bz2|xz|zst|\d+))+$")
_HOST = re.compile(
    r"(?:[A-Za-z]+-)*(?:node|host|worker|gpu|compute|nid|cn|gn|dgx|hgx|ip|slave|master)[a-z]*-?\d[\w-]*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """Attempt, host and rank that wrote a log, by its name; None or empty where the name does not say it."""

    name: str = ""
    rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    attempt: int = 0


def parse_log_name(name: str) -> LogOrigin:
    """The rank, host and attempt in the path of a log: `attempt_1/3/stderr.log`, `node-7/train.rank_12.log.gz`."""
    rank, local = _RANK.search(name), _LOCAL_RANK_FOLDER.search(name)
    attempt = _ATTEMPT.search(name)
    parts = [_LOG_SUFFIX.sub("", part) for part in name.split("/")[-4:]]
    return LogOrigin(
        name,
        rank=int(rank[1]) if rank else None,
        local_rank=int(local[1]) if local and not rank else None,
        host=next((part for part in reversed(parts) if _HOST.fullmatch(part)), ""),
        attempt=int(attempt[1] or attempt[2]) if attempt else 0,
    )


class NamedStream:
    """An open log under the name that is shown."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream, self.name = stream, name
        self._skips_holes = False

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        if self._skips_holes:
            self._skip_hole()
        return self._stream.read(size)

    def skip_holes(self) -> None:
        """From here on leave out the holes of a sparse file, which may be as long as the largest disk."""
        self._skips_holes = self._stream.seekable()

    def _skip_hole(self) -> None:
        descriptor, position = self._stream.fileno(), self._stream.tell()
        unbuffered = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            data = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:  # no data up to the end, or a file system that does not say
            data = os.fstat(descriptor).st_size if error.errno == errno.ENXIO else position
        os.lseek(descriptor, unbuffered, os.SEEK_SET)
        if data - position > _SMALL_HOLE:
            self._stream.seek(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of one job, in the order in which they are read, and the run directory where there is one. `note` says
    what is left out.
    """

    files: tuple[Path, ...]
    run_dir: Path | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def streams(self) -> Iterator[BinaryIO]:
        """Each file, open for reading while it is the current one, under the shortest name that tells it apart."""
        if not self.files:
            yield sys.stdin.buffer
        parents = [file.absolute().parent for file in self.files]
        base = parents[0] if parents else Path()
        while not all(parent.is_relative_to(base) for parent in parents):
            base = base.parent
        for file in self.files:
            name = file.absolute().relative_to(base).as_posix() if len(self.files) > 1 else file.name
            with file.open("rb") as stream:
                named: Any = NamedStream(stream, name)
                yield named


def find_logs(names: Sequence[str]) -> LogFiles:
    """The logs that `names` stand for, as those of one job. Raises UserError where there are none or they cannot be
    read.
    """
    if len(names) == 1:
        return _find_by_name(names[0])
    if "-" in names:
        fix = Fix("give files and folders, or `-` alone for standard input")
        message = "standard input cannot be read with other logs"
        raise UserError([Finding("SP001", "error", message, fix=fix)], ExitCode.USAGE)
    parts = [_find_by_name(name) for name in names]
    files = dict.fromkeys(file for part in parts for file in part.files)
    run = next((part for part in parts if part.run_dir), None)
    note = "; ".join(part.note for part in parts if part.note)
    return LogFiles(tuple(files), run.run_dir if run else None, run.plan if run else {}, note)


def _find_by_name(name: str) -> LogFiles:
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
    logs = path / "logs"
    launchers = [] if logs.is_symlink() else [f for f in logs.glob("launcher*.log") if _is_regular(f)]
    if launchers:
        return LogFiles((max(launchers, key=_attempt_of),), path, read_plan(path)[0])
    in_run_dir = is_run_dir(path) or os.path.lexists(path / PLAN)  # of somebody else: follow no links in it
    paths = (file for file in walk_files(path) if _LOG_NAME.search(file.name))
    files = sorted((f for f in paths if (_is_regular(f) if in_run_dir else f.is_file())), key=_reading_order)
    if not files:
        message = f"the folder `{path}` has no logs"
        fix = Fix(f"logs are files that end in {_LOG_NAMES_IN_WORDS}, or those of a run directory")
        raise UserError([Finding("SP001", "error", message, fix=fix)], ExitCode.USAGE)
    note = f"only {_MAX_FILES} of the {len(files)} logs of `{path}` were read" if len(files) > _MAX_FILES else ""
    run_dir = path if (path / PLAN).is_file() else None
    return LogFiles(tuple(files[:_MAX_FILES]), run_dir, read_plan(path)[0], note)


def _is_regular(file: Path) -> bool:
    """No link, and no pipe or device."""
    return file.is_file() and not file.is_symlink()


def _reading_order(file: Path) -> tuple[object, ...]:
    """By name, numbers by value; of a rotated log the oldest part, `job.log.2`, comes first."""
    rotation = _ROTATION.search(file.name)
    path = file.as_posix().removesuffix(rotation[0]) if rotation else _LOG_SUFFIX.sub(r"", file.as_posix())
    stem = _LOG_SUFFIX.sub("", path)
    key = tuple(part.zfill(12) if part.isdigit() else part for part in re.split(r"(\d+)", stem))
    return key, -int(rotation[1]) if rotation else 0, file.name


def _attempt_of(file: Path) -> int:
    match = re.search(r"-(\d+)\.log$", file.name)
    return int(match[1]) if match else 1
