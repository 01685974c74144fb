"""Whether a run that broke off is started again: arithmetic on what the attempts so far came to. Starts nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.file_io import write_atomically
from harness.verdicts import VERDICT, Verdict

RESTARTS = "restarts.json"
FORMAT_VERSION = 1
MAX_ATTEMPTS_WITHOUT_PROGRESS = 3
"""Attempts in a row without progress after which there are no more."""
MAX_DELAY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the ranks and what came of it. `start_step` is the checkpoint's that it went on from, `saved_step`
    that of the newest complete one afterwards; times are seconds since 1970.
    """

    number: int
    began: float
    ended: float
    resumed_from: str | None
    start_step: int
    saved_step: int
    step: int
    state: str
    code: int
    cause: str
    rank: int | None = None
    host: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """To start again after `delay` seconds, or not to (`delay` None) and why."""

    delay: float | None
    reason: str


def decide_restart(attempts: Sequence[Attempt], verdict: Verdict, max_restarts: int, delay: float) -> RestartDecision:
    """What follows the last attempt, which ended as `verdict` says.

    Never again after a refusal (the same would be refused), after the same error at the same step twice, and after
    PATIENCE attempts that neither saved anything nor got further than those before.
    """
    idle = _count_attempts_without_progress(attempts)
    against = _reason_against_restart(attempts, verdict, max_restarts, idle)
    if against is not None:
        return RestartDecision(None, against)
    return RestartDecision(min(MAX_DELAY_SECONDS, delay * 2 ** max(0, idle - 1)), "")


def _reason_against_restart(attempts: Sequence[Attempt], verdict: Verdict, max_restarts: int, idle: int) -> str | None:
    """Why there is no further attempt, after `idle` without progress; None when there is one."""
    last, before = attempts[-1], attempts[-2] if len(attempts) > 1 else None
    if verdict.state != "failed" or not max_restarts:
        return ""
    if verdict.refused:
        return "not started again: the same would be refused again"
    if len(attempts) > max_restarts:
        return f"not started again: that was restart {len(attempts) - 1} of {max_restarts}"
    if before and verdict.crashed and idle and before.step == last.step and _is_same_error(before.cause, last.cause):
        return f"not started again: it fails the same way at step {last.step} each time"
    if idle >= MAX_ATTEMPTS_WITHOUT_PROGRESS:
        return f"not started again: {idle} attempts in a row made no progress beyond step {last.step}"
    return None


def _is_same_error(one: str, other: str) -> bool:
    """Whether two errors say the same, apart from ports, addresses and process numbers."""
    return re.sub(r"(0x[0-9a-f]+|\d+)", "#", one) == re.sub(r"(0x[0-9a-f]+|\d+)", "#", other)


def _count_attempts_without_progress(attempts: Sequence[Attempt]) -> int:
    """How many attempts at the end neither saved a newer checkpoint nor got further than any before."""
    count = 0
    for index in range(len(attempts) - 1, -1, -1):
        attempt, earlier = attempts[index], attempts[:index]
        furthest = max((a.step for a in earlier), default=attempt.start_step)
        if attempt.saved_step > attempt.start_step or attempt.step > furthest:
            break
        count += 1
    return count


def write_restarts(run_dir: Path, attempts: Sequence[Attempt]) -> None:
    """Write `restarts.json`. Raises OSError."""
    body = {"format_version": FORMAT_VERSION, "attempts": [asdict(attempt) for attempt in attempts]}
    write_atomically(run_dir / RESTARTS, json.dumps(body, indent=1) + "\n")


def read_restarts(run_dir: Path) -> list[dict[str, Any]]:
    """What `restarts.json` says; empty when the run was never started again."""
    try:
        return list(json.loads((run_dir / RESTARTS).read_text(encoding="utf-8"))["attempts"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def log_name(attempt: int) -> str:
    """The file below `logs/` for everything that this attempt prints."""
    return "launcher.log" if attempt == 1 else f"launcher-{attempt}.log"


def archive_statuses(run_dir: Path, attempt: int) -> None:
    """Make the run directory ready for the next attempt: what ranks said of themselves goes to `status/attempt-N`, and
    so does the verdict on them.
    """
    status = run_dir / "status"
    kept = status / f"attempt-{attempt}"
    kept.mkdir(parents=True, exist_ok=True)
    for file in status.glob("rank-*.json"):
        file.replace(kept / file.name)
    if (run_dir / VERDICT).exists():
        (run_dir / VERDICT).replace(kept / VERDICT)


def append_restart_event(run_dir: Path, attempt: Attempt, resume: Path | None, step: int) -> None:
    """A line `restart` in metrics.jsonl: steps after `step` that stand above it were lost and are taken again.

    A rank that was killed may have left half a line, which gets an end first.
    """
    row = {
        "type": "restart",
        "attempt": attempt.number + 1,
        "cause": attempt.cause,
        "rank": attempt.rank,
        "lost_step": attempt.step,
        "step": step,
        "resumed_from": str(resume) if resume else None,
        "time": time.time(),
    }
    text = json.dumps({k: v for k, v in row.items() if v is not None}) + "\n"
    with (run_dir / "metrics.jsonl").open("a+b") as file:
        size = file.seek(0, 2)
        if size:
            file.seek(size - 1)
            text = text if file.read(1) == b"\n" else "\n" + text
        file.write(text.encode())
