"""AT015: a model that is compiled, or is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_equal
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(seen: Observations) -> Any:
    return bool(seen.engine.is_compiled)


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    return check_equal(asked.compile_enabled, found, "whether the engine is compiled")


CHECK = EngineCheck(
    id="AT015",
    name="not-compiled",
    question="is the model compiled where that is asked for?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="train.torch_compile",
    gates=("CC001",),
    fix="set `train.torch_compile: true`, or take `deepspeed.compile` out",
)
