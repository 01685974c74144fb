"""AT022: gradient norms are numbers, and of a plausible size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds
from harness.runtime.attest.seen import Seen

MOST = 1e4


def _look(seen: Seen) -> Any:
    kept, before = [], seen.skipped_before
    for taken in seen.steps:
        if taken.skipped == before and taken.norm is not None:
            kept.append([taken.step, float(taken.norm)])
        before = taken.skipped
    if not kept:
        raise NotApplicable("DeepSpeed tells no norm here, or every step was skipped")
    return kept


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:  # noqa: ARG001
    for rank, has in enumerate(found):
        for step, norm in has:
            if not math.isfinite(norm):
                return differs(
                    f"the gradient norm of step {step} is {norm} on rank {rank}, and the step was taken", norm
                )
        step, norm = has[0]
        if norm > MOST:
            text = f"the gradient norm of step {step} is {norm:.4g}, should be a few units"
            return differs(
                text, norm, "gradients may still be multiplied by a loss scale: clipping then takes nearly all"
            )
    if not any(norm for has in found for _, norm in has):
        return differs("every gradient norm is 0: nothing is trained", 0.0)
    return holds([round(norm, 6) for _, norm in found[0]][:8])


CLAIM = Claim(
    id="AT022",
    name="implausible-gradient",
    question="are gradient norms finite and of a plausible size?",
    moment="steps",
    look=_look,
    judge=_judge,
    key="precision",
    gates=("PR012",),
    fix="use bf16 instead of `torch_autocast` with fp16; else lower the learning rate and look at the data",
)
