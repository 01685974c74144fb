"""AT021: the learning rate of the first steps is that of the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    NotApplicable,
    check_failed,
    check_passed,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.lr_schedule import scheduler_factory

_TOLERANCE = 1e-6


def _observe(seen: Observations) -> Any:
    asked, peak = seen.expected, seen.expected.optimizer_params.get("lr")
    scheduler = seen.engine.lr_scheduler
    if asked.ds_scheduler is not None:
        return {"peaks": [float(x) for x in getattr(scheduler, "max_lrs", ())], "kind": type(scheduler).__name__}
    if not isinstance(peak, (int, float)) or asked.scheduler is None:
        raise NotApplicable("the spec names no rate")
    if asked.optimizer == "muon":
        raise NotApplicable("Muon steps its groups at rates of their own")
    if seen.lr_multiplier is None:
        dummy = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=float(peak))
        seen.lr_multiplier = scheduler_factory(asked.scheduler, seen.total_steps)(dummy).lr_lambdas[0]
    behind = seen.scheduler_steps_at_start
    pairs, skipped = [], seen.skipped_steps_at_start
    for taken in seen.steps:
        index = behind + (taken.step - seen.start_step - 1) - (skipped - seen.skipped_steps_at_start)
        pairs.append([taken.step, taken.learning_rate, float(peak) * float(seen.lr_multiplier(index))])
        skipped = taken.skipped_steps
    exact = asked.dtype != "float16" and not seen.skipped_steps_at_start
    return {"rates": pairs, "behind": behind, "start": seen.start_step if exact else None, "peak": float(peak)}


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    has = found[0]
    if "peaks" in has:
        return _evaluate_deepspeed_scheduler(asked, has)
    if has["start"] is not None and has["behind"] != has["start"]:
        return check_failed(f"the schedule stands at step {has['behind']}, should be at {has['start']}", has["behind"])
    for other in found:
        for step, rate, wanted in other["rates"]:
            if abs(rate - wanted) > _TOLERANCE * has["peak"]:
                return check_failed(
                    f"the learning rate of step {step} is {rate:.6g}, should be {wanted:.6g}", [rate, wanted]
                )
    return check_passed([pair[1] for pair in has["rates"]][:8])


def _evaluate_deepspeed_scheduler(asked: ExpectedSettings, has: dict[str, Any]) -> CheckResult:
    """A `scheduler` block of the JSON: the highest rate that it comes to."""
    given = (asked.ds_scheduler or {}).get("params") or {}
    wanted = given.get("warmup_max_lr", asked.optimizer_params.get("lr"))
    if not has["peaks"] or not isinstance(wanted, (int, float)) or not has["kind"].startswith("Warmup"):
        return CheckResult("skipped", f"the schedule is DeepSpeed's `{has['kind']}`")
    if any(abs(peak - wanted) > _TOLERANCE * wanted for peak in has["peaks"]):
        return check_failed(f"the rate rises to {has['peaks'][0]:.6g}, should rise to {wanted:.6g}", has["peaks"])
    return check_passed(has["peaks"])


CHECK = EngineCheck(
    id="AT021",
    name="another-learning-rate",
    question="is the learning rate of the first steps that of the schedule?",
    moment="steps",
    observe=_observe,
    evaluate=_evaluate,
    key="scheduler",
    gates=("OP022", "OP027"),
    fix="use the section `scheduler` of the spec instead of a `scheduler` block of the JSON",
)
