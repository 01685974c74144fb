"""AT001: the ZeRO stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, equal
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
    return int(seen.engine.zero_optimization_stage())


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    return equal(asked.stage, found, "the engine's ZeRO stage")


CLAIM = Claim(
    id="AT001",
    name="another-zero-stage",
    question="does the engine run at the ZeRO stage that is asked for?",
    moment="built",
    look=_look,
    judge=_judge,
    key="zero.stage",
    gates=("ZR001",),
    fix="write `zero.stage` as a number from 0 to 3, and render the JSON anew",
)
