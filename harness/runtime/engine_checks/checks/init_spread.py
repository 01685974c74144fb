# SPDX-License-Identifier: Apache-2.0
"""AT012: new weights have the standard deviation of the model's own initialisation."""

from __future__ import annotations

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
from harness.runtime.engine_checks.init_stats import WeightStats, compute_model_stats
from harness.runtime.engine_checks.observations import Observations

_MAX_RATIO, _MIN_ELEMENTS = 2.0, 2048


def _observe(observations: Observations) -> Any:
    if not observations.expected.is_random_init:
        raise NotApplicable("the weights are not new")
    if not observations.init_stats:
        raise NotApplicable("the model has no known initialisation")
    return {
        "is": compute_model_stats(observations.engine.module),
        "should": {name: s.std for name, s in observations.init_stats.items()},
    }


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    details = {}
    for kind, expected_std in rank_values[0]["should"].items():
        parts = [values["is"][kind] for values in rank_values if kind in values["is"]]
        stats = WeightStats(*(sum(column) for column in zip(*parts, strict=True))) if parts else None
        if stats is None or stats.count < _MIN_ELEMENTS or not expected_std:
            continue
        details[kind] = {"deviation": round(stats.std, 6), "should": round(expected_std, 6)}
        if not expected_std / _MAX_RATIO <= stats.std <= expected_std * _MAX_RATIO:
            return check_failed(
                f"new weights of `{kind}` have a standard deviation of {stats.std:.4g}, the model's own"
                f" initialisation gives {expected_std:.4g}",
                details,
            )
    return check_passed(details) if details else CheckResult("skipped", "too few weights to decide")


CHECK = EngineCheck(
    id="AT012",
    name="initialisation-lost",
    question="do new weights have the standard deviation of the model's own initialisation?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="model.random_init",
    fix="build the model while an `HfDeepSpeedConfig` is alive, not under a bare `deepspeed.zero.Init`",
)
