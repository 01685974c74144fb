# SPDX-License-Identifier: Apache-2.0
"""AT027: the engine counts one step for each step of the loop, with the expected micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepspeed.runtime.pipe.engine import PipelineEngine

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_failed, check_passed
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    engine, count = observations.engine, len(observations.steps)
    is_pipeline = isinstance(engine, PipelineEngine)
    return {
        "loop": count,
        "engine": int(engine.global_steps) - observations.global_steps_at_start,
        "micro": None if is_pipeline else (int(engine.micro_steps) - observations.micro_steps_at_start) / count,
    }


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    for values in rank_values:
        if values["engine"] != values["loop"]:
            return check_failed(
                f"the engine has taken {values['engine']} steps, should have taken {values['loop']}", values
            )
        if (
            values["micro"] is not None
            and expected.gradient_accumulation_steps is not None
            and values["micro"] != expected.gradient_accumulation_steps
        ):
            return check_failed(
                f"a step has {values['micro']:g} micro-batches, should have {expected.gradient_accumulation_steps}",
                values,
            )
    return check_passed(rank_values[0])


CHECK = EngineCheck(
    id="AT027",
    name="steps-miscounted",
    question="does the engine step once for each step of the loop?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="train.gradient_accumulation_steps",
    gates=("ZR032",),
    fix="write `train.gradient_accumulation_steps` as a whole number, and render the JSON again",
)
