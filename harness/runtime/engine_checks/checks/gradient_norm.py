# SPDX-License-Identifier: Apache-2.0
"""AT022: gradient norms are finite and plausible."""

from __future__ import annotations

import math
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
from harness.runtime.engine_checks.observations import Observations

MAX_NORM = 1e4


def _observe(observations: Observations) -> Any:
    norms, skipped_before = [], observations.skipped_steps_at_start
    for record in observations.steps:
        if record.skipped_steps == skipped_before and record.grad_norm is not None:
            norms.append([record.step, float(record.grad_norm)])
        skipped_before = record.skipped_steps
    if not norms:
        raise NotApplicable("DeepSpeed gives no norm here, or every step was skipped")
    return norms


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    for rank, norms in enumerate(rank_values):
        for step, norm in norms:
            if not math.isfinite(norm):
                return check_failed(
                    f"the gradient norm of step {step} is {norm} on rank {rank}, and the step was taken", norm
                )
        step, norm = norms[0]
        if norm > MAX_NORM:
            text = f"the gradient norm of step {step} is {norm:.4g}, should be a few units"
            return check_failed(
                text, norm, "gradients may still be multiplied by a loss scale: clipping then removes nearly everything"
            )
    if not any(norm for norms in rank_values for _, norm in norms):
        return check_failed("every gradient norm is 0: nothing is trained", 0.0)
    return check_passed([round(norm, 6) for _, norm in rank_values[0]][:8])


CHECK = EngineCheck(
    id="AT022",
    name="implausible-gradient",
    question="are gradient norms finite and of a plausible size?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="precision",
    gates=("PR012",),
    fix="use bf16 instead of `torch_autocast` with fp16; else lower the learning rate and check the data",
)
