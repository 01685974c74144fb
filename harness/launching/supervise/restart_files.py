# SPDX-License-Identifier: Apache-2.0
"""Files of a run directory that record its restarts: `restarts.json`, the logs and statuses of each attempt, and the
line `restart` of metrics.jsonl.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.file_io import write_atomically
from harness.launching.supervise.restart_policy import Attempt
from harness.secret_text import hide_passwords_in
from harness.verdicts import VERDICT

RESTARTS = "restarts.json"
FORMAT_VERSION = 1


def write_restarts(run_dir: Path, attempts: Sequence[Attempt]) -> None:
    """Write `restarts.json`. Raises OSError."""
    body = {"format_version": FORMAT_VERSION, "attempts": [asdict(attempt) for attempt in attempts]}
    write_atomically(run_dir / RESTARTS, json.dumps(hide_passwords_in(body), indent=1) + "\n")


def log_name(attempt: int) -> str:
    """The file below `logs/` for the output of this attempt."""
    return "launcher.log" if attempt == 1 else f"launcher-{attempt}.log"


def archive_statuses(run_dir: Path, attempt: int) -> None:
    """Make the run directory ready for the next attempt: the statuses of the ranks and the verdict on them go to
    `status/attempt-N`. Raises OSError: what stays would be taken for the next attempt's.
    """
    status = run_dir / "status"
    archive = status / f"attempt-{attempt}"
    archive.mkdir(parents=True, exist_ok=True)
    for file in status.glob("rank-*.json"):
        file.replace(archive / file.name)
    if (run_dir / VERDICT).exists():
        (run_dir / VERDICT).replace(archive / VERDICT)


def append_restart_event(run_dir: Path, attempt: Attempt, resume: Path | None, step: int) -> None:
    """Append a line `restart` to metrics.jsonl: the steps after `step` in the lines above are lost and are trained
    again.

    A killed rank may have left half a line, which is ended first.
    """
    row = {
        "type": "restart",
        "attempt": attempt.number + 1,
        "cause": attempt.cause,
        "rank": attempt.rank,
        "host": attempt.host or None,
        "lost_step": attempt.step,
        "step": step,
        "resumed_from": str(resume) if resume else None,
        "time": time.time(),
    }
    text = json.dumps({k: hide_passwords_in(v) for k, v in row.items() if v is not None}) + "\n"
    with (run_dir / "metrics.jsonl").open("a+b") as file:
        size = file.seek(0, 2)
        if size:
            file.seek(size - 1)
            text = text if file.read(1) == b"\n" else "\n" + text
        file.write(text.encode())
