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
"""Times the rate at most, beside decay: Adam's update is below (1 - b1) / sqrt(1 - b2), 3.2 with usual betas."""
_MIN_UPDATE = 0.1
_MIN_LEARNING_RATE = 1e-7


def _observe(seen: Observations) -> Any:
    if seen.weight_change is None:
        raise NotApplicable("no step had a rate yet, or what the optimizer steps is on NVMe")
    return seen.weight_change


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    rate = max(has["rate"] for has in found)
    move = max(has["move"] for has in found)
    told = {"rate": rate, "largest_change": move, "step": found[0]["step"]}
    if asked.master_dtype != "float32" or rate < _MIN_LEARNING_RATE:
        return CheckResult("skipped", "a step of this size is lost in rounding")
    if not math.isfinite(move):
        return check_failed(f"weights are no numbers after step {told['step']}", told)
    if move == 0:
        return check_failed(f"no weight has moved in step {told['step']}, whose rate is {rate:.4g}", told)
    most = _MAX_UPDATE.get(asked.optimizer)
    if most is None:
        return check_passed(told)
    decay = asked.optimizer_params.get("weight_decay")
    largest = max(has["weight"] for has in found)
    above = rate * (most + (float(decay) if isinstance(decay, (int, float)) else 0.0) * largest) + largest * 1e-6
    fresh = not found[0]["start"] and float(asked.optimizer_params.get("eps") or 0.0) <= 1e-6
    if move > above or (fresh and move < _MIN_UPDATE * rate):
        return check_failed(
            f"weights have moved by {move:.4g} at most in step {told['step']}, about {rate:.4g} was due",
            told,
            "a loss scale that is divided out twice makes steps small, another rate or decay makes them large",
        )
    return check_passed(told)


CHECK = EngineCheck(
    id="AT023",
    name="weights-do-not-move",
    question="does the first step with a learning rate move weights by about that rate?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="optimizer.learning_rate",
    gates=("PR002", "PR012"),
    fix="look at the loss scale and the schedule; `precision.bf16: true` needs no scale",
)
