# SPDX-License-Identifier: Apache-2.0
"""AT004: the device of ZeRO-3's parameter shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_equal
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    optimizer = observations.engine.optimizer
    if getattr(optimizer, "params_in_nvme_and_cpu", False):
        return "nvme"
    return "cpu" if getattr(optimizer, "offload_param", False) else "none"


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    return check_equal(expected.offload_param, rank_values, "the device of offloaded parameters")


CHECK = EngineCheck(
    id="AT004",
    name="parameters-elsewhere",
    question="are parameter shards on the device of the spec?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero.offload_param.device",
    gates=("OF001", "OF006"),
    fix="parameters are offloaded at ZeRO stage 3 only: set `zero.stage: 3`, or remove `zero.offload_param`",
)
