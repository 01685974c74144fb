# SPDX-License-Identifier: Apache-2.0
"""The verdict on a run by its supervisor: the value, and the file `verdict.json` in the run directory.

The supervisor sees the signal that ends a rank. The ranks that outlive it only see a broken connection, and write that
to the log and to their statuses: the verdict comes before them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from harness import input_limits
from harness.file_io import parse_json, read_regular, replace_file
from harness.secret_text import hide_passwords_in

State = Literal["completed", "stopped", "failed"]
VERDICT = "verdict.json"
FORMAT_VERSION = 1
_SIGNAL_NAMES = {"SIGINT": "Ctrl-C (SIGINT)", "SIGUSR1": "SIGUSR1 (notice of pre-emption)"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a run: the state, the exit code, and for a failure the rank that failed first and its reason."""

    state: State
    code: int
    reason: str = ""
    rank: int | None = None
    host: str = ""
    step: int = 0
    notes: tuple[str, ...] = ()
    refused: bool = False
    """A rank refused the input: the next start would end the same way."""
    crashed: bool = False
    """A rank raised an error, as opposed to being killed or lost."""
    signal: str = ""
    """The signal that ended the rank, or that requested the stop, such as `SIGKILL`."""
    cause: str = ""
    """The page of `harness explain`, such as `LG003`; empty where only the text of an error is known."""
    attempt: int = 1
    """The number of the attempt that ended so."""
    time: float = 0.0
    """When, in seconds since 1970."""
    seconds: float = 0.0
    """The time of the whole launch: ops, all attempts, and the export. 0: not known."""


def describe_verdict(verdict: Verdict) -> str:
    """The end of a run in one line, the same for the terminal, `harness runs`, the report and `harness explain --log`:
    `failed on rank 1 (node2) at step 24: killed by SIGKILL`. The caller shortens it and escapes it.
    """
    if verdict.state == "completed":
        return f"completed at step {verdict.step}" + (f", {verdict.reason}" if verdict.reason else "")
    return f"{verdict.state}{describe_end(verdict)}"


def describe_end(verdict: Verdict) -> str:
    """The rest of that line after the state: rank, host and signal, step, and reason."""
    by = f" by {describe_signal(verdict.signal)}" if verdict.state == "stopped" and verdict.signal else ""
    rank = f" on {describe_rank(verdict)}" if verdict.rank is not None else ""
    reason = f": {verdict.reason}" if verdict.reason else ""
    return f"{by}{rank} at step {verdict.step}{reason}"


def describe_rank(verdict: Verdict) -> str:
    """`rank 1 (node2)`; empty where no rank is named."""
    if verdict.rank is None:
        return ""
    return f"rank {verdict.rank}" + (f" ({verdict.host})" if verdict.host else "")


def describe_signal(name: str) -> str:
    """The signal's name for people."""
    return _SIGNAL_NAMES.get(name, name)


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """The content of `verdict.json`."""
    body = {
        "format_version": FORMAT_VERSION,
        "state": verdict.state,
        "exit_code": int(verdict.code),
        "reason": verdict.reason,
        "rank": verdict.rank,
        "host": verdict.host,
        "signal": verdict.signal,
        "cause": verdict.cause,
        "step": verdict.step,
        "attempt": verdict.attempt,
        "time": verdict.time,
        "seconds": verdict.seconds,
        "refused": verdict.refused,
        "crashed": verdict.crashed,
        "notes": list(verdict.notes),
    }
    return {name: hide_passwords_in(value) for name, value in body.items()}


def write_verdict(run_dir: Path, verdict: Verdict) -> None:
    """Write `verdict.json`. Raises OSError."""
    replace_file(run_dir / VERDICT, json.dumps(verdict_to_json(verdict), indent=1) + "\n")


def read_verdict(run_dir: Path) -> Verdict | None:
    """The verdict in `verdict.json`. None if there is none: the run has not ended, is of an older release, or its
    supervisor was killed. None also if the file is not one that a launch writes.
    """
    try:
        body = parse_json(read_regular(run_dir / VERDICT, input_limits.VERDICT, follow=False))
        return _parse_verdict(body)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _parse_verdict(body: Any) -> Verdict:
    """Raises ValueError, KeyError and TypeError for anything that `write_verdict` does not write."""
    rank, notes, time, seconds = body["rank"], body["notes"], body["time"], body.get("seconds", 0.0)
    if body["state"] not in get_args(State) or not isinstance(notes, list):
        raise ValueError
    if not all(isinstance(value, (int, float)) and 0 <= value < 1e11 for value in (time, seconds)):
        raise ValueError
    return Verdict(
        state=body["state"],
        code=_parse_int(body["exit_code"]),
        reason=_parse_str(body["reason"]),
        rank=None if rank is None else _parse_int(rank),
        host=_parse_str(body["host"]),
        step=_parse_int(body["step"]),
        notes=tuple(_parse_str(note) for note in notes),
        refused=body["refused"] is True,
        crashed=body["crashed"] is True,
        signal=_parse_str(body["signal"]),
        cause=_parse_str(body["cause"]),
        attempt=_parse_int(body["attempt"]),
        time=float(time),
        seconds=float(seconds),
    )


def _parse_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _parse_int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError
    return value
