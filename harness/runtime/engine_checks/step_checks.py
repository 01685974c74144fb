# SPDX-License-Identifier: Apache-2.0
"""Engine checks of the first steps: loss, learning rate, gradient norm, update of weights, skips, samples, count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch.optim.lr_scheduler import LambdaLR

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    NotApplicable,
    check_failed,
    check_passed,
    engine_check,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.lr_schedule import scheduler_factory

_MIN_FIRST_LOSS_RATIO, _MAX_FIRST_LOSS_RATIO = 0.7, 1.4


def _observe_first_loss(observations: Observations) -> Any:
    if not observations.expected.is_random_init or observations.start_step:
        raise NotApplicable(
            "the weights are not new"
            if not observations.expected.is_random_init
            else "the run resumes from a checkpoint"
        )
    config: Any = observations.model_config
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    # Logits of new weights are spread by sqrt(hidden) * initializer_range, which adds half its square to the loss.
    logits = getattr(config, "hidden_size", 0) * getattr(config, "initializer_range", 0.02) ** 2
    return {
        "part": float(observations.steps[0].loss) / observations.loss_divisor,
        "vocabulary": int(config.vocab_size),
        "logits": logits,
    }


def _evaluate_first_loss(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    loss, uniform_loss = sum(values["part"] for values in rank_values), math.log(rank_values[0]["vocabulary"])
    details = {"loss": round(loss, 4), "logarithm": round(uniform_loss, 4)}
    max_loss = _MAX_FIRST_LOSS_RATIO * uniform_loss + rank_values[0]["logits"]
    if not _MIN_FIRST_LOSS_RATIO * uniform_loss <= loss <= max_loss:  # a NaN too
        text = f"the first loss is {loss:.4g}, should be near {uniform_loss:.4g}, the logarithm of the vocabulary"
        return check_failed(text, details, "the initialisation is lost, or labels are not the tokens that come next")
    return check_passed(details)


FIRST_LOSS = engine_check("AT020", _observe_first_loss, _evaluate_first_loss)


_LEARNING_RATE_TOLERANCE = 1e-6


def _observe_learning_rate(observations: Observations) -> Any:
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


def _evaluate_learning_rate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    values = rank_values[0]
    if "peaks" in values:
        return _evaluate_deepspeed_scheduler(expected, values)
    if values["start"] is not None and values["behind"] != values["start"]:
        text = f"the schedule is at step {values['behind']}, should be at {values['start']}"
        return check_failed(text, values["behind"])
    for other_values in rank_values:
        for step, rate, expected_rate in other_values["rates"]:
            if abs(rate - expected_rate) > _LEARNING_RATE_TOLERANCE * values["peak"]:
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
    if any(abs(peak - max_rate) > _LEARNING_RATE_TOLERANCE * max_rate for peak in values["peaks"]):
        return check_failed(
            f"the rate rises to {values['peaks'][0]:.6g}, should rise to {max_rate:.6g}", values["peaks"]
        )
    return check_passed(values["peaks"])


LEARNING_RATE = engine_check("AT021", _observe_learning_rate, _evaluate_learning_rate)


MAX_NORM = 1e4


def _observe_gradient_norm(observations: Observations) -> Any:
    norms, skipped_before = [], observations.skipped_steps_at_start
    for record in observations.steps:
        if record.skipped_steps == skipped_before and record.grad_norm is not None:
            norms.append([record.step, float(record.grad_norm)])
        skipped_before = record.skipped_steps
    if not norms:
        raise NotApplicable("DeepSpeed gives no norm here, or every step was skipped")
    return norms


def check_finite_norms(rank_values: Sequence[Any]) -> CheckResult:
    """Fails for the first (step, norm) of a rank that is not finite; otherwise the norms of rank 0 as observed."""
    for rank, norms in enumerate(rank_values):
        for step, norm in norms:
            if not math.isfinite(norm):
                text = f"the gradient norm of step {step} is {norm} on rank {rank}, and the step was taken"
                return check_failed(text, norm)
    return check_passed([round(norm, 6) for _, norm in rank_values[0]][:8])


def _evaluate_gradient_norm(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    result = check_finite_norms(rank_values)
    if result.state == "differs":
        return result
    for norms in rank_values:
        step, norm = norms[0]
        if norm > MAX_NORM:
            text = f"the gradient norm of step {step} is {norm:.4g}, should be a few units"
            return check_failed(
                text, norm, "gradients may still be multiplied by a loss scale: clipping then removes nearly everything"
            )
    if not any(norm for norms in rank_values for _, norm in norms):
        return check_failed("every gradient norm is 0: nothing is trained", 0.0)
    return result


GRADIENT_NORM = engine_check("AT022", _observe_gradient_norm, _evaluate_gradient_norm)


_MAX_UPDATE = {"adam": 5.0, "adamw": 5.0, "lion": 1.5, "adagrad": 1.5}
"""Largest update in units of the rate, decay aside: Adam's update is below (1 - b1) / sqrt(1 - b2), 3.2 with usual
betas."""
_MIN_UPDATE = 0.1
_MIN_LEARNING_RATE = 1e-7


def _observe_weight_update(observations: Observations) -> Any:
    if observations.weight_change is None:
        raise NotApplicable("no step had a rate yet, or the optimizer is on NVMe")
    return observations.weight_change


def _evaluate_weight_update(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    rate = max(values["rate"] for values in rank_values)
    move = max(values["move"] for values in rank_values)
    details = {"rate": rate, "largest_change": move, "step": rank_values[0]["step"]}
    if expected.master_dtype != "float32" or rate < _MIN_LEARNING_RATE:
        return CheckResult("skipped", "a step of this size is lost in rounding")
    if not math.isfinite(move):
        return check_failed(f"weights are not finite after step {details['step']}", details)
    if move == 0:
        return check_failed(f"no weight has moved in step {details['step']}, whose rate is {rate:.4g}", details)
    max_update = _MAX_UPDATE.get(expected.optimizer)
    if max_update is None:
        return check_passed(details)
    decay = expected.optimizer_params.get("weight_decay")
    largest = max(values["weight"] for values in rank_values)
    max_move = (
        rate * (max_update + (float(decay) if isinstance(decay, (int, float)) else 0.0) * largest) + largest * 1e-6
    )
    is_fresh = not rank_values[0]["start"] and float(expected.optimizer_params.get("eps") or 0.0) <= 1e-6
    if move > max_move or (is_fresh and move < _MIN_UPDATE * rate):
        return check_failed(
            f"weights moved by {move:.4g} at most in step {details['step']}, expected about {rate:.4g}",
            details,
            "a loss scale that is divided out twice makes steps small, another rate or decay makes them large",
        )
    return check_passed(details)


WEIGHT_UPDATE = engine_check("AT023", _observe_weight_update, _evaluate_weight_update)


_CONSECUTIVE_SKIPS = 8


def _observe_skipped_steps(observations: Observations) -> Any:
    if len(observations.steps) < _CONSECUTIVE_SKIPS:
        raise NotApplicable(f"fewer than {_CONSECUTIVE_SKIPS} steps")
    counts = [observations.skipped_steps_at_start, *(record.skipped_steps for record in observations.steps)]
    last_skips = [b > a for a, b in pairwise(counts)][-_CONSECUTIVE_SKIPS:]
    scales = [record.loss_scale for record in observations.steps[-_CONSECUTIVE_SKIPS:]]
    return {"all": all(last_skips), "skipped": counts[-1] - counts[0], "scales": [scales[0], scales[-1]]}


def _evaluate_skipped_steps(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    for values in rank_values:
        first, last = values["scales"]
        if values["all"] and (first is None or last >= first):
            scale = "" if first is None else f", and the loss scale stays at {last:g}"
            return check_failed(f"each of the last {_CONSECUTIVE_SKIPS} steps was skipped{scale}", values)
    return check_passed(rank_values[0])


SKIPPED_STEPS = engine_check("AT024", _observe_skipped_steps, _evaluate_skipped_steps)


def _observe_samples(observations: Observations) -> Any:
    if observations.last_batch is None:
        raise NotApplicable("no sample was read")
    return observations.last_batch


def _evaluate_samples(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    groups: dict[int, int] = {}
    owners: dict[int, int] = {}
    for rank, values in enumerate(rank_values):
        group = expected.dims_of_rank(rank).data_parallel_rank
        first_rank = groups.setdefault(group, rank)
        if rank_values[first_rank]["digest"] != values["digest"]:
            return check_failed(
                f"ranks {first_rank} and {rank} share a micro-batch, but see different tokens in step {values['step']}",
                values["step"],
            )
        for row in values["rows"] if first_rank == rank else ():
            other_rank = owners.setdefault(row, rank)
            if other_rank != rank:
                return check_failed(
                    f"ranks {other_rank} and {rank} both train on row {row} in step {values['step']}", values["step"]
                )
    return check_passed({"rows": len(owners), "groups": len(groups)})


SAMPLES = engine_check("AT025", _observe_samples, _evaluate_samples)


def _observe_step_count(observations: Observations) -> Any:
    engine, count = observations.engine, len(observations.steps)
    is_pipeline = isinstance(engine, PipelineEngine)
    return {
        "loop": count,
        "engine": int(engine.global_steps) - observations.global_steps_at_start,
        "micro": None if is_pipeline else (int(engine.micro_steps) - observations.micro_steps_at_start) / count,
    }


def _evaluate_step_count(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    for values in rank_values:
        if values["engine"] != values["loop"]:
            return check_failed(
                f"the engine has taken {values['engine']} steps, should have taken {values['loop']}", values
            )
        if (
            values["micro"] is not None
            and expected.gradient_accumulation_steps is not None
            and values["micro"] != expected.gradient_accumulation_steps
        ):
            return check_failed(
                f"a step has {values['micro']:g} micro-batches, should have {expected.gradient_accumulation_steps}",
                values,
            )
    return check_passed(rank_values[0])


STEP_COUNT = engine_check("AT027", _observe_step_count, _evaluate_step_count)
