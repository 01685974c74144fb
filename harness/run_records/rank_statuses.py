# SPDX-License-Identifier: Apache-2.0
"""The status files of a run's ranks, `status/rank-NNNNN.json`. `harness.runtime.rank_status` writes them."""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.file_io import parse_json
from harness.progress import RANK_STATUS
from harness.run_records.run_files import json_of

FINAL_STATES = {"completed", "stopped", "failed"}
_LOOKS_UNTIL_CLOCK = 64
_STATUS_LINE = re.compile(rf"(?:[^\s:]+: )?(?:\[rank\d+\]: )?{RANK_STATUS}(.*)")
"""After pdsh's host and the mark of the rank; never in the middle of a line, which may quote anything."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The last status that one rank wrote. `time` is seconds since 1970."""

    rank: int
    host: str
    pid: int
    state: str
    step: int
    time: float
    error: str = ""
    checkpoint: str = ""
    phase: str = "step"
    activity: str = ""
    """Its phase before its first step."""
    refused: bool = False
    """The error is a finding about the user's input: a start with the same input would fail the same way."""
    outcome: str = ""
    """The end of training, once it is there; the rank may still be uploading."""
    not_uploaded: str = ""
    """Why the newest checkpoint is not in the object store, from the end of training on."""
    upload_command: str = ""
    """The command that uploads it later."""

    @property
    def is_final(self) -> bool:
        """This rank writes no further status."""
        return self.state in FINAL_STATES


@dataclass(slots=True)
class StatusReader:
    """The statuses of a run while it runs, for many thousand ranks: a file is read again only once it has changed, and
    a look may end before the last rank. Use: `refresh` repeatedly.
    """

    run_dir: Path
    world_size: int
    statuses: dict[int, RankStatus] = field(default_factory=dict)
    """The last status of each rank that could be read."""
    num_reads: int = 0
    """Files that were read so far."""
    _versions: dict[int, tuple[int, int]] = field(default_factory=dict)
    _next_rank: int = 0

    @property
    def is_mid_pass(self) -> bool:
        """True if the last call looked at a part of the ranks only."""
        return self._next_rank > 0

    def refresh(self, seconds: float | None = None) -> None:
        """Look at the file of every rank. With `seconds` only for so long: the next call goes on with the next rank."""
        if (self.run_dir / "status").is_symlink():
            return
        first = self._next_rank if seconds is not None else 0
        deadline = time.monotonic() + (math.inf if seconds is None else seconds)
        self._next_rank = 0
        for rank in range(first, self.world_size):
            self.refresh_rank(rank)
            if rank % _LOOKS_UNTIL_CLOCK == 0 and time.monotonic() > deadline and rank + 1 < self.world_size:
                self._next_rank = rank + 1
                return

    def refresh_rank(self, rank: int) -> None:
        """Look at the file of one rank."""
        file = f"{self.run_dir}/status/{status_name(rank)}"
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:  # of the open file: what NFS says of a name may be a minute old
            stat = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        version = (stat.st_mtime_ns, stat.st_ino)  # a rank replaces its file
        if self._versions.get(rank) == version:
            return
        self.num_reads += 1
        status = _read_status(Path(file))
        if status is None or status.rank != rank:
            return
        self._versions[rank] = version
        known = self.statuses.get(rank)
        if known is None or known.time <= status.time:  # a later one may have come as a line
            self.statuses[rank] = status

    def read_line(self, line: str) -> bool:
        """True if this line of output is the status of a rank that could not write its file; it counts as if it had."""
        match = _STATUS_LINE.match(line)
        if match is None:
            return False
        try:
            status = _parse_status(parse_json(match[1]))
        except ValueError:
            return False
        if status is None or not 0 <= status.rank < self.world_size:
            return False
        known = self.statuses.get(status.rank)
        if known is None or known.time <= status.time:
            self.statuses[status.rank] = status
        return True


def status_name(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank:05d}.json"


def read_statuses(run_dir: Path) -> dict[int, RankStatus]:
    """The last status of every rank; a file that cannot be read (a rank may be replacing it), or that speaks of another
    rank than its name, is left out.
    """
    files = sorted((run_dir / "status").glob("rank-*.json"))
    statuses = [(file.name, _read_status(file)) for file in files]
    return {status.rank: status for name, status in statuses if status and name == status_name(status.rank)}


def _read_status(file: Path) -> RankStatus | None:
    return _parse_status(json_of(file))


def _parse_status(body: Any) -> RankStatus | None:
    """None for what no rank writes."""
    try:
        return RankStatus(
            rank=int(body["rank"]),
            host=str(body.get("host", "")),
            pid=int(body.get("pid", 0)),
            state=str(body["state"]),
            step=int(body.get("step") or 0),
            time=float(body.get("time") or 0.0),
            error=str(body.get("error") or ""),
            checkpoint=str(body.get("checkpoint") or ""),
            phase=str(body.get("phase") or "step"),
            activity=str(body.get("activity") or ""),
            refused=bool(body.get("refused")),
            outcome=str(body.get("outcome") or ""),
            not_uploaded=str(body.get("not_uploaded") or ""),
            upload_command=str(body.get("upload_command") or ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
