# SPDX-License-Identifier: Apache-2.0
"""The status files of a run's ranks, `status/rank-NNNNN.json`. `harness.runtime.rank_status` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.run_records.run_files import json_of

FINAL_STATES = {"completed", "stopped", "failed"}


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

    @property
    def is_final(self) -> bool:
        """This rank writes no further status."""
        return self.state in FINAL_STATES


def read_statuses(run_dir: Path) -> dict[int, RankStatus]:
    """The last status of every rank; a file that cannot be read (a rank may be replacing it) is left out."""
    statuses = {}
    for file in sorted((run_dir / "status").glob("rank-*.json")):
        try:
            body = json_of(file)
            status = RankStatus(
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
            )
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
        statuses[status.rank] = status
    return statuses
