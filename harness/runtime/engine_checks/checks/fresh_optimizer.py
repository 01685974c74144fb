# SPDX-License-Identifier: Apache-2.0
"""AT013: the optimizer takes no step before the first one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.runtime.engine_checks.checks.optimizer_class import innermost_optimizer
from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_failed, check_passed
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    base, count, moment = innermost_optimizer(observations.engine.optimizer), 0, 0.0
    for state in getattr(base, "state", {}).values():
        for name, value in state.items():
            if name == "step":
                count = max(count, int(value))
            elif torch.is_tensor(value) and value.numel() and name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
                moment = max(moment, float(value.detach().reshape(-1)[:4096].abs().max()))
    count = max([count, *(int(g["step"]) for g in base.param_groups if "step" in g)])
    return {"steps": count, "moment": moment}


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    for rank, values in enumerate(rank_values):
        if values["steps"]:
            text = f"the optimizer of rank {rank} has taken {values['steps']} step before the first one"
            return check_failed(text, values, "Adam's count would be ahead, and weight decay applied once too often")
        if values["moment"]:
            return check_failed(f"the optimizer of rank {rank} has moments before the first step", values)
    return check_passed(rank_values[0])


CHECK = EngineCheck(
    id="AT013",
    name="step-before-the-first",
    question="does the optimizer start without a step?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero.stage",
    fix="set `zero.stage: 1`: in 16 bit at stage 0 DeepSpeed steps once while it is built",
)
