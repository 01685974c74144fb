"""AT004: where ZeRO-3's parameter shards live between uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, equal
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
    optimizer = seen.engine.optimizer
    if getattr(optimizer, "params_in_nvme_and_cpu", False):
        return "nvme"
    return "cpu" if getattr(optimizer, "offload_param", False) else "none"


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    return equal(asked.offload_param, found, "the place that parameters are offloaded to")


CLAIM = Claim(
    id="AT004",
    name="parameters-elsewhere",
    question="are parameter shards where they are asked to be?",
    moment="built",
    look=_look,
    judge=_judge,
    key="zero.offload_param.device",
    gates=("OF001", "OF006"),
    fix="parameters are offloaded at ZeRO stage 3 only: set `zero.stage: 3`, or take `zero.offload_param` out",
)
