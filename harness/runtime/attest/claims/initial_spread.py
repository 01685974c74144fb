"""AT012: new weights are spread as the model's own initialisation spreads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds
from harness.runtime.attest.seen import Seen
from harness.runtime.attest.spread import Spread, of_model

_FACTOR, _ENOUGH = 2.0, 2048


def _look(seen: Seen) -> Any:
    if not seen.asked.fresh:
        raise NotApplicable("the weights are not new")
    if not seen.spread:
        raise NotApplicable("the model does not say how it is initialised")
    return {"is": of_model(seen.engine.module), "should": {name: s.deviation for name, s in seen.spread.items()}}


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:  # noqa: ARG001
    told = {}
    for kind, wanted in found[0]["should"].items():
        parts = [has["is"][kind] for has in found if kind in has["is"]]
        whole = Spread(*(sum(column) for column in zip(*parts, strict=True))) if parts else None
        if whole is None or whole.count < _ENOUGH or not wanted:
            continue
        told[kind] = {"deviation": round(whole.deviation, 6), "should": round(wanted, 6)}
        if not wanted / _FACTOR <= whole.deviation <= wanted * _FACTOR:
            return differs(
                f"new weights of `{kind}` have a standard deviation of {whole.deviation:.4g}, the model's own"
                f" initialisation gives {wanted:.4g}",
                told,
            )
    return holds(told) if told else Answer("skipped", "too few weights to tell")


CLAIM = Claim(
    id="AT012",
    name="initialisation-lost",
    question="have new weights the spread that the model's own initialisation has?",
    moment="built",
    look=_look,
    judge=_judge,
    key="model.random_init",
    fix="build the model while an `HfDeepSpeedConfig` is alive, not under a bare `deepspeed.zero.Init`",
)
