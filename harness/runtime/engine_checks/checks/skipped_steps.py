"""AT024: skipped steps stop, or at least the loss scale falls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    NotApplicable,
    check_failed,
    check_passed,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations

_CONSECUTIVE_SKIPS = 8


def _observe(seen: Observations) -> Any:
    if len(seen.steps) < _CONSECUTIVE_SKIPS:
        raise NotApplicable(f"fewer than {_CONSECUTIVE_SKIPS} steps")
    counts = [seen.skipped_steps_at_start, *(taken.skipped_steps for taken in seen.steps)]
    last = [b > a for a, b in pairwise(counts)][-_CONSECUTIVE_SKIPS:]
    scales = [taken.loss_scale for taken in seen.steps[-_CONSECUTIVE_SKIPS:]]
    return {"all": all(last), "skipped": counts[-1] - counts[0], "scales": [scales[0], scales[-1]]}


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    for has in found:
        first, last = has["scales"]
        if has["all"] and (first is None or last >= first):
            scale = "" if first is None else f", and the loss scale stays at {last:g}"
            return check_failed(f"each of the last {_CONSECUTIVE_SKIPS} steps was skipped{scale}", has)
    return check_passed(found[0])


CHECK = EngineCheck(
    id="AT024",
    name="every-step-skipped",
    question="do skipped steps stop?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="precision",
    gates=("PR012",),
    fix="use bf16, or a lower `precision.initial_scale_power`",
)
