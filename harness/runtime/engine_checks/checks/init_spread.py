"""AT012: new weights are spread as the model's own initialisation spreads them."""

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


def _observe(seen: Observations) -> Any:
    if not seen.expected.is_random_init:
        raise NotApplicable("the weights are not new")
    if not seen.init_stats:
        raise NotApplicable("the model does not say how it is initialised")
    return {
        "is": compute_model_stats(seen.engine.module),
        "should": {name: s.std for name, s in seen.init_stats.items()},
    }


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    told = {}
    for kind, wanted in found[0]["should"].items():
        parts = [has["is"][kind] for has in found if kind in has["is"]]
        whole = WeightStats(*(sum(column) for column in zip(*parts, strict=True))) if parts else None
        if whole is None or whole.count < _MIN_ELEMENTS or not wanted:
            continue
        told[kind] = {"deviation": round(whole.std, 6), "should": round(wanted, 6)}
        if not wanted / _MAX_RATIO <= whole.std <= wanted * _MAX_RATIO:
            return check_failed(
                f"new weights of `{kind}` have a standard deviation of {whole.std:.4g}, the model's own"
                f" initialisation gives {wanted:.4g}",
                told,
            )
    return check_passed(told) if told else CheckResult("skipped", "too few weights to tell")


CHECK = EngineCheck(
    id="AT012",
    name="initialisation-lost",
    question="have new weights the spread that the model's own initialisation has?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="model.random_init",
    fix="build the model while an `HfDeepSpeedConfig` is alive, not under a bare `deepspeed.zero.Init`",
)
