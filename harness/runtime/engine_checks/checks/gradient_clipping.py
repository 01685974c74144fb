"""AT006: where gradients are clipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_equal, check_failed, format_value
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(seen: Observations) -> Any:
    own = getattr(seen.engine.optimizer, "clip_grad", None)
    return {"engine": seen.engine.gradient_clipping(), "wrapper": own}


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    wanted = asked.gradient_clipping
    if isinstance(wanted, (int, float)) and not isinstance(wanted, bool) and wanted < 0:
        return check_failed(f"gradients are clipped at {wanted}, which DeepSpeed takes for no clipping", wanted)
    answer = check_equal(wanted, [has["engine"] for has in found], "the gradient norm to clip at")
    own = [has["wrapper"] for has in found if has["wrapper"] is not None]
    if answer.state == "holds" and any(value != wanted for value in own):
        return check_failed(
            f"the optimizer's wrapper clips at {format_value(own[0])}, should be {format_value(wanted)}", own[0]
        )
    return answer


CHECK = EngineCheck(
    id="AT006",
    name="another-clipping",
    question="are gradients clipped where they are asked to be?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="train.max_grad_norm",
    gates=("PP002",),
    fix="write `train.max_grad_norm`: DeepSpeed's own default is 1.0 from 0.19.3 on, 0 before",
)
