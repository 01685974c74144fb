# SPDX-License-Identifier: Apache-2.0
"""The restart policy: decides from the attempts so far whether a failed run starts again. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.diagnosis.decision import Decision
from harness.verdicts import Verdict

MAX_ATTEMPTS_WITHOUT_PROGRESS = 3
"""Attempts in a row without progress after which the run ends."""
MAX_DELAY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the ranks and its result. `start_step` is that of the checkpoint that it resumed from, `saved_step`
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
    """Restart after `delay` seconds; with `delay` None do not restart, for the reason given."""

    delay: float | None
    reason: str


def decide_restart(
    attempts: Sequence[Attempt], verdict: Verdict, max_restarts: int, delay: float, advice: Decision | None = None
) -> RestartDecision:
    """The step after the last attempt, which ended as `verdict` says.

    `advice` is the decision by the cause in the log. Never again after a refusal (the same would be refused) unless of
    a full disk, which may be emptied; after a cause that is certain and that the same input has again; after the same
    error at the same step twice; and after MAX_ATTEMPTS_WITHOUT_PROGRESS attempts that neither saved anything nor got
    further than those before.
    """
    idle = _count_attempts_without_progress(attempts)
    refusal = _reason_against_restart(attempts, verdict, max_restarts, idle, advice)
    if refusal is not None:
        return RestartDecision(None, refusal)
    return RestartDecision(min(MAX_DELAY_SECONDS, delay * 2 ** max(0, idle - 1)), "")


def _reason_against_restart(
    attempts: Sequence[Attempt], verdict: Verdict, max_restarts: int, idle: int, advice: Decision | None
) -> str | None:
    """The reason why there is no further attempt, after `idle` without progress; None when there is one."""
    last, before = attempts[-1], attempts[-2] if len(attempts) > 1 else None
    if verdict.state != "failed" or not max_restarts:
        return ""
    needs_space = advice is not None and advice.needs_space
    if not needs_space and (reason := _reason_of_cause(verdict, advice, idle)):
        return reason
    if len(attempts) > max_restarts:
        return f"not restarted: that was restart {len(attempts) - 1} of {max_restarts}"
    if (
        before
        and verdict.crashed
        and not needs_space
        and idle
        and before.step == last.step
        and _is_same_error(before.cause, last.cause)
    ):
        return f"not restarted: it fails the same way at step {last.step} each time"
    if idle >= MAX_ATTEMPTS_WITHOUT_PROGRESS:
        return f"not restarted: {idle} attempts in a row made no progress beyond step {last.step}"
    return None


def _reason_of_cause(verdict: Verdict, advice: Decision | None, idle: int) -> str:
    """The reason why another attempt would certainly fail like this one; empty where it may not. `idle`: the attempts
    without progress.
    """
    if verdict.refused:
        return "not restarted: it would be refused again"
    if advice is None or not advice.is_certain or (advice.may_pass and not idle):
        return ""
    is_deterministic = advice.action in {"stop", "change and retry"}
    return f"not restarted: {advice.action}: {advice.reason}" if is_deterministic else ""


def _is_same_error(one: str, other: str) -> bool:
    """True if two errors are the same, apart from ports, addresses and process numbers."""
    return re.sub(r"(0x[0-9a-f]+|\d+)", "#", one) == re.sub(r"(0x[0-9a-f]+|\d+)", "#", other)


def _count_attempts_without_progress(attempts: Sequence[Attempt]) -> int:
    """The number of last attempts that neither saved a newer checkpoint nor got further than any before."""
    count = 0
    for index in range(len(attempts) - 1, -1, -1):
        attempt, earlier = attempts[index], attempts[:index]
        furthest = max((a.step for a in earlier), default=attempt.start_step)
        if attempt.saved_step > attempt.start_step or attempt.step > furthest:
            break
        count += 1
    return count
