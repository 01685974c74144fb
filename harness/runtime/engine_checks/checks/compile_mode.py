# SPDX-License-Identifier: Apache-2.0
"""AT015: compilation of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_equal
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    return bool(observations.engine.is_compiled)


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    return check_equal(expected.compile_enabled, rank_values, "whether the engine is compiled")


CHECK = EngineCheck(
    id="AT015",
    name="not-compiled",
    question="is the model compiled as in the spec?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="train.torch_compile",
    gates=("CC001",),
    fix="set `train.torch_compile: true`, or remove `deepspeed.compile`",
)
