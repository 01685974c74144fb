"""AT004: where ZeRO-3's parameter shards live between uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_equal
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(seen: Observations) -> Any:
    optimizer = seen.engine.optimizer
    if getattr(optimizer, "params_in_nvme_and_cpu", False):
        return "nvme"
    return "cpu" if getattr(optimizer, "offload_param", False) else "none"


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    return check_equal(asked.offload_param, found, "the place that parameters are offloaded to")


CHECK = EngineCheck(
    id="AT004",
    name="parameters-elsewhere",
    question="are parameter shards where they are asked to be?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero.offload_param.device",
    gates=("OF001", "OF006"),
    fix="parameters are offloaded at ZeRO stage 3 only: set `zero.stage: 3`, or take `zero.offload_param` out",
)
