"""AT013: an optimizer that has not stepped yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, differs, holds
from harness.runtime.attest.claims.optimizer_class import base_of
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
    base, count, moment = base_of(seen.engine.optimizer), 0, 0.0
    for state in getattr(base, "state", {}).values():
        for name, value in state.items():
            if name == "step":
                count = max(count, int(value))
            elif torch.is_tensor(value) and value.numel() and name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
                moment = max(moment, float(value.detach().reshape(-1)[:4096].abs().max()))
    count = max([count, *(int(g["step"]) for g in base.param_groups if "step" in g)])
    return {"steps": count, "moment": moment}


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:  # noqa: ARG001
    for rank, has in enumerate(found):
        if has["steps"]:
            text = f"the optimizer of rank {rank} has taken {has['steps']} step before the first one"
            return differs(text, has, "Adam's count would be ahead, and weight decay applied once too often")
        if has["moment"]:
            return differs(f"the optimizer of rank {rank} has moments before the first step", has)
    return holds(found[0])


CLAIM = Claim(
    id="AT013",
    name="step-before-the-first",
    question="has the optimizer taken no step before the first one?",
    moment="built",
    look=_look,
    judge=_judge,
    key="zero.stage",
    fix="set `zero.stage: 1`: in 16 bit at stage 0 DeepSpeed steps once while it is built",
)
