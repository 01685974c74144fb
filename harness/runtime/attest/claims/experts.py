"""AT016: experts that are spread over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, equal
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
    if seen.asked.experts < 2:
        raise NotApplicable("no expert parallelism is asked for")
    from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer

    sizes = [int(m.ep_size) for m in seen.engine.module.modules() if isinstance(m, AutoEPMoELayer)]
    return min(sizes, default=1)


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    return equal(asked.experts, found, "the number of ranks that share a layer's experts")


CLAIM = Claim(
    id="AT016",
    name="experts-not-spread",
    question="do as many ranks share a layer's experts as is asked for?",
    moment="built",
    look=_look,
    judge=_judge,
    key="deepspeed.expert_parallel",
    gates=("EX001", "EX003"),
    fix="set `expert_parallel.enabled: true` and `autoep_size`, with a model that has experts",
)
