"""AT021: the learning rate of the first steps is that of the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds
from harness.runtime.attest.seen import Seen
from harness.runtime.schedule import scheduler_factory

_CLOSE = 1e-6


def _look(seen: Seen) -> Any:
    asked, peak = seen.asked, seen.asked.params.get("lr")
    scheduler = seen.engine.lr_scheduler
    if asked.ds_scheduler is not None:
        return {"peaks": [float(x) for x in getattr(scheduler, "max_lrs", ())], "kind": type(scheduler).__name__}
    if not isinstance(peak, (int, float)) or asked.scheduler is None:
        raise NotApplicable("the spec names no rate")
    if asked.optimizer == "muon":
        raise NotApplicable("Muon steps its groups at rates of their own")
    if seen.rule is None:
        dummy = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=float(peak))
        seen.rule = scheduler_factory(asked.scheduler, seen.total_steps)(dummy).lr_lambdas[0]
    behind = seen.scheduled_before
    pairs, skipped = [], seen.skipped_before
    for taken in seen.steps:
        index = behind + (taken.step - seen.start - 1) - (skipped - seen.skipped_before)
        pairs.append([taken.step, taken.rate, float(peak) * float(seen.rule(index))])
        skipped = taken.skipped
    exact = asked.dtype != "float16" and not seen.skipped_before
    return {"rates": pairs, "behind": behind, "start": seen.start if exact else None, "peak": float(peak)}


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    has = found[0]
    if "peaks" in has:
        return _deepspeeds(asked, has)
    if has["start"] is not None and has["behind"] != has["start"]:
        return differs(f"the schedule stands at step {has['behind']}, should be at {has['start']}", has["behind"])
    for other in found:
        for step, rate, wanted in other["rates"]:
            if abs(rate - wanted) > _CLOSE * has["peak"]:
                return differs(
                    f"the learning rate of step {step} is {rate:.6g}, should be {wanted:.6g}", [rate, wanted]
                )
    return holds([pair[1] for pair in has["rates"]][:8])


def _deepspeeds(asked: Asked, has: dict[str, Any]) -> Answer:
    """A `scheduler` block of the JSON: the highest rate that it comes to."""
    given = (asked.ds_scheduler or {}).get("params") or {}
    wanted = given.get("warmup_max_lr", asked.params.get("lr"))
    if not has["peaks"] or not isinstance(wanted, (int, float)) or not has["kind"].startswith("Warmup"):
        return Answer("skipped", f"the schedule is DeepSpeed's `{has['kind']}`")
    if any(abs(peak - wanted) > _CLOSE * wanted for peak in has["peaks"]):
        return differs(f"the rate rises to {has['peaks'][0]:.6g}, should rise to {wanted:.6g}", has["peaks"])
    return holds(has["peaks"])


CLAIM = Claim(
    id="AT021",
    name="another-learning-rate",
    question="is the learning rate of the first steps that of the schedule?",
    moment="steps",
    look=_look,
    judge=_judge,
    key="scheduler",
    gates=("OP022", "OP027"),
    fix="use the section `scheduler` of the spec instead of a `scheduler` block of the JSON",
)
