"""AT015: a model that is compiled, or is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, equal
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
    return bool(seen.engine.is_compiled)


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    return equal(asked.compiled, found, "whether the engine is compiled")


CLAIM = Claim(
    id="AT015",
    name="not-compiled",
    question="is the model compiled where that is asked for?",
    moment="built",
    look=_look,
    judge=_judge,
    key="train.torch_compile",
    gates=("CC001",),
    fix="set `train.torch_compile: true`, or take `deepspeed.compile` out",
)
