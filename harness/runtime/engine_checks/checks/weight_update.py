# SPDX-License-Identifier: Apache-2.0
"""AT023: the first step with a learning rate moves weights by about that rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
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

_MAX_UPDATE = {"adam": 5.0, "adamw": 5.0, "lion": 1.5, "adagrad": 1.5}
"""Largest update in units of the rate, decay aside: Adam's update is below (1 - b1) / sqrt(1 - b2), 3.2 with usual
betas."""
_MIN_UPDATE = 0.1
_MIN_LEARNING_RATE = 1e-7


def _observe(observations: Observations) -> Any:
    if observations.weight_change is None:
        raise NotApplicable("no step had a rate yet, or the optimizer is on NVMe")
    return observations.weight_change


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    rate = max(values["rate"] for values in rank_values)
    move = max(values["move"] for values in rank_values)
    details = {"rate": rate, "largest_change": move, "step": rank_values[0]["step"]}
    if expected.master_dtype != "float32" or rate < _MIN_LEARNING_RATE:
        return CheckResult("skipped", "a step of this size is lost in rounding")
    if not math.isfinite(move):
        return check_failed(f"weights are not finite after step {details['step']}", details)
    if move == 0:
        return check_failed(f"no weight has moved in step {details['step']}, whose rate is {rate:.4g}", details)
    max_update = _MAX_UPDATE.get(expected.optimizer)
    if max_update is None:
        return check_passed(details)
    decay = expected.optimizer_params.get("weight_decay")
    largest = max(values["weight"] for values in rank_values)
    max_move = (
        rate * (max_update + (float(decay) if isinstance(decay, (int, float)) else 0.0) * largest) + largest * 1e-6
    )
    is_fresh = not rank_values[0]["start"] and float(expected.optimizer_params.get("eps") or 0.0) <= 1e-6
    if move > max_move or (is_fresh and move < _MIN_UPDATE * rate):
        return check_failed(
            f"weights moved by {move:.4g} at most in step {details['step']}, expected about {rate:.4g}",
            details,
            "a loss scale that is divided out twice makes steps small, another rate or decay makes them large",
        )
    return check_passed(details)


CHECK = EngineCheck(
    id="AT023",
    name="weights-do-not-move",
    question="does the first step with a learning rate move weights by about that rate?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="optimizer.learning_rate",
    gates=("PR002", "PR012"),
    fix="check the loss scale and the schedule; `precision.bf16: true` needs no scale",
)
