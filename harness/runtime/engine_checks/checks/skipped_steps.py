# SPDX-License-Identifier: Apache-2.0
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


def _observe(observations: Observations) -> Any:
    if len(observations.steps) < _CONSECUTIVE_SKIPS:
        raise NotApplicable(f"fewer than {_CONSECUTIVE_SKIPS} steps")
    counts = [observations.skipped_steps_at_start, *(record.skipped_steps for record in observations.steps)]
    last_skips = [b > a for a, b in pairwise(counts)][-_CONSECUTIVE_SKIPS:]
    scales = [record.loss_scale for record in observations.steps[-_CONSECUTIVE_SKIPS:]]
    return {"all": all(last_skips), "skipped": counts[-1] - counts[0], "scales": [scales[0], scales[-1]]}


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    for values in rank_values:
        first, last = values["scales"]
        if values["all"] and (first is None or last >= first):
            scale = "" if first is None else f", and the loss scale stays at {last:g}"
            return check_failed(f"each of the last {_CONSECUTIVE_SKIPS} steps was skipped{scale}", values)
    return check_passed(rank_values[0])


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
