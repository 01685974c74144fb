# SPDX-License-Identifier: Apache-2.0
"""Seconds of the forward and backward passes of a step on one rank, with the bubble of a pipeline."""

from __future__ import annotations

from typing import NamedTuple

from harness.facts.devices import Device
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.fitted_rates import FittedRates
from harness.plan.time.rates import Rates
from harness.plan.time.step_work import ComputeWork

_LEAF_HOOKS = 0.53
"""Python calls of ZeRO-3's hooks with one hook a layer by those with one a module: 12,866 of 24,454 on a tiny Llama."""
_COMPILED_LAUNCHES = 0.5
"""Launches of a compiled layer by those of an eager one; assumed."""


class ComputeTime(NamedTuple):
    """Seconds of a step, and the share of them that fused attention takes."""

    seconds: float
    attention_share: float


def compute_time(
    work: ComputeWork, settings: PlanSettings, device: Device, rates: Rates, fitted: FittedRates
) -> ComputeTime:
    """The longer of what the GPU computes and what the host launches, a micro-batch after the other.

    A given `compute_efficiency` replaces the fitted shares: it is that of all executed operations.
    """
    gpu, attention = _gpu_seconds(work, settings, device, rates, fitted)
    micro_batch = max(gpu, work.layer_passes * launch_seconds(settings, fitted))
    return ComputeTime(micro_batch * work.micro_batches / (1 - work.idle_share), attention / micro_batch)


def _gpu_seconds(
    work: ComputeWork, settings: PlanSettings, device: Device, rates: Rates, fitted: FittedRates
) -> tuple[float, float]:
    """Products, attention, and the traffic of everything else: norms, activations, residuals, logits and their loss.
    Also the seconds of attention alone.
    """
    peak = device.flops_16 if settings.param_bytes == 2 else device.flops_32
    if rates.efficiency:
        executed = work.matmul_flops + work.attention_forward_flops + work.attention_backward_flops / 1.25
        return executed / (peak * rates.efficiency), 0.0
    share = fitted.matmul_share(device.name, work.width, work.rows) * (fitted.expert_share if work.experts else 1.0)
    products = work.matmul_flops / (peak * share)
    forward, backward = fitted.attention_shares(device.name, settings.seq_length)
    if settings.attention == "eager":  # plain products over all pairs; their traffic is that of the saved softmax
        forward = backward = fitted.matmul_share(device.name, work.width, work.rows) / 2
    attention = (work.attention_forward_flops / forward + work.attention_backward_flops / backward) / peak
    traffic = fitted.activation_passes * work.activation_bytes + fitted.logit_bytes * work.logits
    traffic += work.dequantized_bytes
    return products + attention + traffic / (device.bandwidth * fitted.memory_share), attention


def launch_seconds(settings: PlanSettings, fitted: FittedRates) -> float:
    """Seconds of the host for one pass through one layer: kernel launches, Python, ZeRO-3's hooks around modules."""
    launch = fitted.launch_seconds * (_COMPILED_LAUNCHES if settings.compiled else 1.0)
    hooks = fitted.hook_seconds * (_LEAF_HOOKS if settings.leaf_decoder_layers else 1.0)
    return launch + (hooks if settings.stage == 3 else 0.0)
