# SPDX-License-Identifier: Apache-2.0
"""Causes of extra work: pipeline bubbles, recomputation, small micro-batches, padding. One function a cause."""

from __future__ import annotations

from harness.plan.planner import Plan
from harness.plan.settings.checkpointed_layers import recompute_shares
from harness.plan.time.fitted_rates import FITTED
from harness.plan.time.pipeline_schedule import bubble_fraction
from harness.plan.weights.flops import NO_RECOMPUTATION, hardware_flops_per_token
from harness.run.resolved_run import ATTN_IMPLEMENTATION
from harness.slowness.run_measurements import (
    RunMeasurements,
    SettingChange,
    Slowdown,
    enlarge_micro_batch,
    format_percent,
    scale_micro_batch,
)

_BUBBLE_LIMIT = 0.10
_RECOMPUTATION_LIMIT = 0.10
_MICRO_BATCH_LIMIT = 0.30
_MIN_TOKENS = 4096
"""Tokens of a micro-batch below which matrix products are seldom near the peak: a rule of thumb."""
_PADDING_LIMIT = 0.15


def detect_pipeline_bubble(run: RunMeasurements) -> Slowdown | None:
    """Pipeline bubble: stages wait at the start and the end of each batch, (p - 1) / (m + p - 1) of it under 1F1B.

    More than a tenth of the batch is the bubble.
    """
    settings = run.settings
    if settings is None or settings.pipeline_parallel_size < 2:
        return None
    share = bubble_fraction("1f1b", settings.pipeline_parallel_size, settings.accumulation)
    if share < _BUBBLE_LIMIT:
        return None
    evidence = [
        f"{settings.pipeline_parallel_size} stages and {settings.accumulation} micro-batches:"
        f" (p - 1) / (m + p - 1) = {format_percent(share)} of the time each stage waits, if all stages are equally fast"
    ]
    changes = []
    for factor in (0.5, 0.25):
        sets = scale_micro_batch(settings, factor)
        if sets is not None:
            bubble = format_percent(
                bubble_fraction("1f1b", settings.pipeline_parallel_size, int(settings.accumulation / factor))
            )
            changes.append(
                SettingChange(
                    f"micro-batches of {sets['train.per_device_train_batch_size']}: a bubble of {bubble}", sets
                )
            )
    if settings.pipeline_parallel_size > 2 and settings.pipeline_parallel_size % 2 == 0:
        changes.append(
            SettingChange(
                f"{settings.pipeline_parallel_size // 2} stages",
                {"parallel.pipeline_parallel_size": settings.pipeline_parallel_size // 2},
            )
        )
    advice = ("a larger `train.global_batch_size` has more micro-batches (changes what is trained)",)
    return Slowdown("bubble", "the pipeline's bubble", share, tuple(evidence), tuple(changes), advice, is_planned=True)


def detect_recomputation(run: RunMeasurements) -> Slowdown | None:
    """Recomputation: gradient checkpointing runs the layers' forward pass a second time.

    More than a tenth of the FLOPs of a step, by the formula of the plan, is recomputation.
    """
    settings, plan = run.settings, run.plan
    if settings is None or plan is None or plan.model is None or not settings.checkpointing:
        return None
    shares = recompute_shares(settings, plan.model.num_layers)
    executed_flops = hardware_flops_per_token(plan.model, settings.seq_length, shares)
    recompute_share = 1 - hardware_flops_per_token(plan.model, settings.seq_length, NO_RECOMPUTATION) / executed_flops
    compute_share = sum(run.measured_share(part) or 0.0 for part in ("forward", "backward", "pipeline"))
    share = recompute_share * (compute_share or run.planned_share("compute") or 0.0)
    if share < _RECOMPUTATION_LIMIT:
        return None
    evidence = [f"{format_percent(recompute_share)} of the executed FLOPs recompute activations of the forward pass"]
    if "mfu" in run.medians and "hfu" in run.medians:
        evidence.append(f"MFU is {run.medians['mfu']:.1%}, HFU, which counts them, {run.medians['hfu']:.1%}")
    changes = [SettingChange("activations kept", {"train.gradient_checkpointing": False})]
    for factor in (0.5, 0.25):
        sets = scale_micro_batch(settings, factor)
        if sets is not None:
            description = f"activations kept, with micro-batches of {sets['train.per_device_train_batch_size']}"
            changes.append(SettingChange(description, {"train.gradient_checkpointing": False, **sets}))
    return Slowdown("recompute", "recomputing activations", share, tuple(evidence), tuple(changes), is_planned=True)


def detect_small_micro_batch(run: RunMeasurements) -> Slowdown | None:
    """Small micro-batch: too few tokens to keep the device busy, and more of everything that each micro-batch costs.

    Micro-batches below _MIN_TOKENS accumulate, and compute is far below the efficiency of the plan.
    """
    settings, plan, mfu = run.settings, run.plan, run.medians.get("mfu")
    if (
        settings is None
        or plan is None
        or mfu is None
        or settings.accumulation < 2
        or settings.tokens_per_micro_batch >= _MIN_TOKENS
    ):
        return None
    utilization = run.medians.get("hfu", mfu)
    compute_share = sum(run.measured_share(part) or 0.0 for part in ("forward", "backward", "pipeline")) or 1.0
    compute_utilization = utilization / compute_share
    efficiency = _large_product_share(plan)
    if efficiency is None:
        return None
    share = (1 - compute_utilization / efficiency) * compute_share
    if share < _MICRO_BATCH_LIMIT:
        return None
    evidence = (
        f"a micro-batch has {settings.tokens_per_micro_batch:,} tokens,"
        f" a step accumulates {settings.accumulation} of them",
        f"while it computes, the device reaches {compute_utilization:.1%} of its peak;"
        f" large matrix products reach {format_percent(efficiency)}",
    )
    advice = ("the plan's share for large matrix products was fitted to published runs",)
    return Slowdown("small-micro-batch", "a small micro-batch", share, evidence, enlarge_micro_batch(settings), advice)


def _large_product_share(plan: Plan) -> float | None:
    """Share of the peak that this model's products reach with many tokens: given by the spec, or fitted."""
    if plan.rates.efficiency:
        return plan.rates.efficiency
    if plan.model is None or plan.device is None:
        return None
    return FITTED.matmul_share(plan.device.name, plan.model.hidden, 2 * _MIN_TOKENS)


def detect_padding(run: RunMeasurements) -> Slowdown | None:
    """Padding: computed positions without a token.

    More than 15% of the positions are padding.
    """
    tokens, positions = run.medians.get("step_tokens"), run.medians.get("step_positions")
    if not tokens or not positions or tokens > (1 - _PADDING_LIMIT) * positions:
        return None
    compute_share = sum(run.measured_share(part) or 0.0 for part in ("forward", "backward", "pipeline")) or 1.0
    share = (1 - tokens / positions) * compute_share
    evidence = (
        f"{positions:,.0f} positions a step hold {tokens:,.0f} tokens:"
        f" {format_percent(1 - tokens / positions)} is padding",
    )
    plan_run = run.plan.run if run.plan else None
    changes = []
    if plan_run is None or not plan_run.spec.data.packing:
        effect = "several records share a sequence without a mask, a step has more tokens"
        sets = {"data.packing": True, ATTN_IMPLEMENTATION: "auto"}
        changes.append(SettingChange("several records in a sequence", sets, effect))
    return Slowdown("padding", "padding", share, evidence, tuple(changes))
