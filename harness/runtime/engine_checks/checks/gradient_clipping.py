# SPDX-License-Identifier: Apache-2.0
"""AT006: the gradient norm to clip at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_equal, check_failed, format_value
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    wrapper_norm = getattr(observations.engine.optimizer, "clip_grad", None)
    return {"engine": observations.engine.gradient_clipping(), "wrapper": wrapper_norm}


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    max_norm = expected.gradient_clipping
    if isinstance(max_norm, (int, float)) and not isinstance(max_norm, bool) and max_norm < 0:
        return check_failed(f"gradients are clipped at {max_norm}, which DeepSpeed treats as no clipping", max_norm)
    result = check_equal(max_norm, [values["engine"] for values in rank_values], "the gradient norm to clip at")
    wrapper_norms = [values["wrapper"] for values in rank_values if values["wrapper"] is not None]
    if result.state == "holds" and any(value != max_norm for value in wrapper_norms):
        return check_failed(
            f"the optimizer's wrapper clips at {format_value(wrapper_norms[0])}, should be {format_value(max_norm)}",
            wrapper_norms[0],
        )
    return result


CHECK = EngineCheck(
    id="AT006",
    name="another-clipping",
    question="are gradients clipped at the norm of the spec?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="train.max_grad_norm",
    fix="write `train.max_grad_norm`: DeepSpeed's own default is 1.0 from 0.19.3 on, 0 before",
)
