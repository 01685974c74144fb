# SPDX-License-Identifier: Apache-2.0
"""AT001: the ZeRO stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_equal
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    return int(observations.engine.zero_optimization_stage())


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    return check_equal(expected.zero_stage, rank_values, "the engine's ZeRO stage")


CHECK = EngineCheck(
    id="AT001",
    name="another-zero-stage",
    question="does the engine run at the ZeRO stage of the spec?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero.stage",
    gates=("ZR001",),
    fix="write `zero.stage` as a number from 0 to 3, and render the JSON again",
)
