"""AT027: the engine counts one step for one of the loop's, and as many micro-batches as are accumulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepspeed.runtime.pipe.engine import PipelineEngine

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_failed, check_passed
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(seen: Observations) -> Any:
    engine, count = seen.engine, len(seen.steps)
    piped = isinstance(engine, PipelineEngine)
    return {
        "loop": count,
        "engine": int(engine.global_steps) - seen.global_steps_at_start,
        "micro": None if piped else (int(engine.micro_steps) - seen.micro_steps_at_start) / count,
    }


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    for has in found:
        if has["engine"] != has["loop"]:
            return check_failed(f"the engine has taken {has['engine']} steps, should have taken {has['loop']}", has)
        if (
            has["micro"] is not None
            and asked.gradient_accumulation_steps is not None
            and has["micro"] != asked.gradient_accumulation_steps
        ):
            return check_failed(
                f"a step has {has['micro']:g} micro-batches, should have {asked.gradient_accumulation_steps}", has
            )
    return check_passed(found[0])


CHECK = EngineCheck(
    id="AT027",
    name="steps-miscounted",
    question="does the engine step once for each step of the loop?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="train.gradient_accumulation_steps",
    gates=("ZR032",),
    fix="write `train.gradient_accumulation_steps` as a whole number, and render the JSON anew",
)
