# SPDX-License-Identifier: Apache-2.0
"""AT021: the learning rate of the first steps is that of the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.optim.lr_scheduler import LambdaLR

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


def _observe(observations: Observations) -> Any:
    expected, peak = observations.expected, observations.expected.optimizer_params.get("lr")
    scheduler = observations.engine.lr_scheduler
    if expected.ds_scheduler is not None:
        return {"peaks": [float(x) for x in getattr(scheduler, "max_lrs", ())], "kind": type(scheduler).__name__}
    if not isinstance(peak, (int, float)) or expected.scheduler is None:
        raise NotApplicable("the spec names no rate")
    if expected.optimizer == "muon":
        raise NotApplicable("Muon steps its groups at separate rates")
    if observations.lr_multiplier is None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=float(peak))
        make_scheduler = scheduler_factory(expected.scheduler, observations.total_steps)
        observations.lr_multiplier = cast("LambdaLR", make_scheduler(optimizer)).lr_lambdas[0]
    schedule_steps = observations.scheduler_steps_at_start
    pairs, skipped = [], observations.skipped_steps_at_start
    for record in observations.steps:
        skipped_here = skipped - observations.skipped_steps_at_start
        index = schedule_steps + (record.step - observations.start_step - 1) - skipped_here
        pairs.append([record.step, record.learning_rate, float(peak) * float(observations.lr_multiplier(index))])
        skipped = record.skipped_steps
    is_exact = expected.dtype != "float16" and not observations.skipped_steps_at_start
    start_step = observations.start_step if is_exact else None
    return {"rates": pairs, "behind": schedule_steps, "start": start_step, "peak": float(peak)}


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    values = rank_values[0]
    if "peaks" in values:
        return _evaluate_deepspeed_scheduler(expected, values)
    if values["start"] is not None and values["behind"] != values["start"]:
        text = f"the schedule is at step {values['behind']}, should be at {values['start']}"
        return check_failed(text, values["behind"])
    for other_values in rank_values:
        for step, rate, expected_rate in other_values["rates"]:
            if abs(rate - expected_rate) > _TOLERANCE * values["peak"]:
                return check_failed(
                    f"the learning rate of step {step} is {rate:.6g}, should be {expected_rate:.6g}",
                    [rate, expected_rate],
                )
    return check_passed([pair[1] for pair in values["rates"]][:8])


def _evaluate_deepspeed_scheduler(expected: ExpectedSettings, values: dict[str, Any]) -> CheckResult:
    """A `scheduler` block of the JSON: the highest rate that it comes to."""
    params = (expected.ds_scheduler or {}).get("params") or {}
    max_rate = params.get("warmup_max_lr", expected.optimizer_params.get("lr"))
    if not values["peaks"] or not isinstance(max_rate, (int, float)) or not values["kind"].startswith("Warmup"):
        return CheckResult("skipped", f"the schedule is DeepSpeed's `{values['kind']}`")
    if any(abs(peak - max_rate) > _TOLERANCE * max_rate for peak in values["peaks"]):
        return check_failed(
            f"the rate rises to {values['peaks'][0]:.6g}, should rise to {max_rate:.6g}", values["peaks"]
        )
    return check_passed(values["peaks"])


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
