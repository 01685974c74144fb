"""AT020: a new model knows nothing, so that its first loss is near the logarithm of the vocabulary."""

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

_MIN_RATIO, _MAX_RATIO = 0.7, 1.4


def _observe(seen: Observations) -> Any:
    if not seen.expected.is_random_init or seen.start_step:
        raise NotApplicable(
            "the weights are not new" if not seen.expected.is_random_init else "the run goes on from a checkpoint"
        )
    config = seen.model_config.get_text_config() if hasattr(seen.model_config, "get_text_config") else seen.model_config
    # Logits of new weights are spread by sqrt(hidden) * initializer_range, which adds half its square to the loss.
    logits = getattr(config, "hidden_size", 0) * getattr(config, "initializer_range", 0.02) ** 2
    return {
        "part": float(seen.steps[0].loss) / seen.loss_divisor,
        "vocabulary": int(config.vocab_size),
        "logits": logits,
    }


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    loss, even = sum(has["part"] for has in found), math.log(found[0]["vocabulary"])
    told = {"loss": round(loss, 4), "logarithm": round(even, 4)}
    high = _MAX_RATIO * even + found[0]["logits"]
    if not _MIN_RATIO * even <= loss <= high:  # a NaN too
        text = f"the first loss is {loss:.4g}, should be near {even:.4g}, the logarithm of the vocabulary"
        return check_failed(text, told, "the initialisation is lost, or labels are not the tokens that come next")
    return check_passed(told)


CHECK = EngineCheck(
    id="AT020",
    name="first-loss-elsewhere",
    question="is the first loss of a new model near the logarithm of the vocabulary?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="model",
    fix="look at the initialisation (AT012) and at the rows: `harness data show`",
)
