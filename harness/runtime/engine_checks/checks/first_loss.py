# SPDX-License-Identifier: Apache-2.0
"""AT020: the first loss of a new model is near the logarithm of the vocabulary."""

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


def _observe(observations: Observations) -> Any:
    if not observations.expected.is_random_init or observations.start_step:
        raise NotApplicable(
            "the weights are not new"
            if not observations.expected.is_random_init
            else "the run resumes from a checkpoint"
        )
    config = observations.model_config
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    # Logits of new weights are spread by sqrt(hidden) * initializer_range, which adds half its square to the loss.
    logits = getattr(config, "hidden_size", 0) * getattr(config, "initializer_range", 0.02) ** 2
    return {
        "part": float(observations.steps[0].loss) / observations.loss_divisor,
        "vocabulary": int(config.vocab_size),
        "logits": logits,
    }


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    loss, uniform_loss = sum(values["part"] for values in rank_values), math.log(rank_values[0]["vocabulary"])
    details = {"loss": round(loss, 4), "logarithm": round(uniform_loss, 4)}
    max_loss = _MAX_RATIO * uniform_loss + rank_values[0]["logits"]
    if not _MIN_RATIO * uniform_loss <= loss <= max_loss:  # a NaN too
        text = f"the first loss is {loss:.4g}, should be near {uniform_loss:.4g}, the logarithm of the vocabulary"
        return check_failed(text, details, "the initialisation is lost, or labels are not the tokens that come next")
    return check_passed(details)


CHECK = EngineCheck(
    id="AT020",
    name="first-loss-elsewhere",
    question="is the first loss of a new model near the logarithm of the vocabulary?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="model",
    fix="check the initialisation (AT012) and the rows: `harness data show`",
)
