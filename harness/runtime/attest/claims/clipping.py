"""AT006: where gradients are clipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, differs, equal, show
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
    own = getattr(seen.engine.optimizer, "clip_grad", None)
    return {"engine": seen.engine.gradient_clipping(), "wrapper": own}


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    wanted = asked.clipping
    if isinstance(wanted, (int, float)) and not isinstance(wanted, bool) and wanted < 0:
        return differs(f"gradients are clipped at {wanted}, which DeepSpeed takes for no clipping", wanted)
    answer = equal(wanted, [has["engine"] for has in found], "the gradient norm to clip at")
    own = [has["wrapper"] for has in found if has["wrapper"] is not None]
    if answer.state == "holds" and any(value != wanted for value in own):
        return differs(f"the optimizer's wrapper clips at {show(own[0])}, should be {show(wanted)}", own[0])
    return answer


CLAIM = Claim(
    id="AT006",
    name="another-clipping",
    question="are gradients clipped where they are asked to be?",
    moment="built",
    look=_look,
    judge=_judge,
    key="train.max_grad_norm",
    gates=("PP002",),
    fix="write `train.max_grad_norm`: DeepSpeed's own default is 1.0 from 0.19.3 on, 0 before",
)
