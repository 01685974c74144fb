"""AT020: a new model knows nothing, so that its first loss is near the logarithm of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds
from harness.runtime.attest.seen import Seen

_LOW, _HIGH = 0.7, 1.4


def _look(seen: Seen) -> Any:
    if not seen.asked.fresh or seen.start:
        raise NotApplicable("the weights are not new" if not seen.asked.fresh else "the run goes on from a checkpoint")
    config = seen.config.get_text_config() if hasattr(seen.config, "get_text_config") else seen.config
    # Logits of new weights are spread by sqrt(hidden) * initializer_range, which adds half its square to the loss.
    logits = getattr(config, "hidden_size", 0) * getattr(config, "initializer_range", 0.02) ** 2
    return {"part": float(seen.steps[0].loss) / seen.divisor, "vocabulary": int(config.vocab_size), "logits": logits}


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:  # noqa: ARG001
    loss, even = sum(has["part"] for has in found), math.log(found[0]["vocabulary"])
    told = {"loss": round(loss, 4), "logarithm": round(even, 4)}
    high = _HIGH * even + found[0]["logits"]
    if not _LOW * even <= loss <= high:  # a NaN too
        text = f"the first loss is {loss:.4g}, should be near {even:.4g}, the logarithm of the vocabulary"
        return differs(text, told, "the initialisation is lost, or labels are not the tokens that come next")
    return holds(told)


CLAIM = Claim(
    id="AT020",
    name="first-loss-elsewhere",
    question="is the first loss of a new model near the logarithm of the vocabulary?",
    moment="steps",
    look=_look,
    judge=_judge,
    key="model",
    fix="look at the initialisation (AT012) and at the rows: `harness data show`",
)
