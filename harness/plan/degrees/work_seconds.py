# SPDX-License-Identifier: Apache-2.0
"""Seconds of a step's work on a known kind of GPU, from the planner's fitted rates. The only module here with a rate.

Nothing here is fitted: matrix products, attention, launches and traffic have the rates of
`harness.plan.time.fitted_rates`.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.devices import Device
from harness.plan.degrees.gpu_work import GpuWork, MatrixProduct, Traffic
from harness.plan.time.fitted_rates import FITTED, FittedRates
from harness.plan.time.rates import Rates

_CALL_SECONDS = 20e-6
"""Seconds of one collective or message without its bytes."""
_BACKWARD_PRODUCTS = 1.25
"""Products of a fused attention's backward pass by those that are counted: it computes the scores again."""


@dataclass(frozen=True, slots=True)
class WorkSeconds:
    """Seconds of a step by part. `low` and `high` are those of a fast and of a slow machine."""

    seconds: float
    low: float
    high: float
    parts: tuple[tuple[str, float, float], ...]
    """(name, seconds, those that nothing hides)."""


def work_seconds(work: GpuWork, device: Device, rates: Rates, fitted: FittedRates = FITTED) -> WorkSeconds:
    """Compute, or the launches where they take longer; collectives that hide under a window's compute; the bubble."""
    products = sum(_product_seconds(each, work, device, rates, fitted) for each in work.products)
    attention = _attention_seconds(work, device, rates, fitted)
    memory = device.bandwidth * fitted.memory_share
    elementwise = work.elementwise_bytes / memory
    compute = products + attention + elementwise
    passes = 3 if work.attention.recomputed else 2
    launches = max(0.0, work.layer_passes * passes * fitted.launch_seconds - compute)
    optimizer = work.optimizer_bytes / memory + fitted.step_seconds
    once = [("optimizer step", optimizer, optimizer)]
    busy = [
        ("matrix products", products, products),
        ("attention", attention, attention),
        ("norms, activations, residuals", elementwise, elementwise),
        ("launches beyond compute", launches, launches),
    ]
    for traffic, seconds, exposed in _exposed_traffic(work, device, rates, fitted, compute):
        (once if traffic.group in ("data", "expert data") else busy).append((traffic.purpose, seconds, exposed))
    bubble = work.bubble * sum(part[2] for part in busy)
    parts = tuple(part for part in [*busy, ("pipeline bubble", bubble, bubble), *once] if part[1] > 0)
    kinds = {traffic.purpose for traffic in work.traffic}
    spread = fitted.spread
    factors = [(exposed, spread.collectives if name in kinds else spread.compute) for name, _, exposed in parts]
    return WorkSeconds(
        sum(exposed for exposed, _ in factors),
        sum(exposed / factor for exposed, factor in factors),
        sum(exposed * factor for exposed, factor in factors),
        parts,
    )


def _product_seconds(product: MatrixProduct, work: GpuWork, device: Device, rates: Rates, fitted: FittedRates) -> float:
    """At the fitted share of the peak. FP8 products of layers have twice the peak, and twice the loss to small sides:
    what a small product loses is a time, which does not shrink.
    """
    peak = device.flops_32 if work.precision == "fp32" else device.flops_16
    faster = 1.0
    if work.precision == "fp8" and device.flops_8 and product.part not in ("head", "router"):
        faster = device.flops_8 / device.flops_16
    if rates.efficiency:
        return product.flops / (peak * faster * rates.efficiency)
    width, rows = min(product.inner, product.outer), product.rows
    share = fitted.matmul_share(device.name, width / faster, rows / faster)
    share *= fitted.expert_share if product.part == "experts" else 1.0
    return product.flops / (peak * faster * share)


def _attention_seconds(work: GpuWork, device: Device, rates: Rates, fitted: FittedRates) -> float:
    peak = device.flops_32 if work.precision == "fp32" else device.flops_16
    flops, recomputed = work.attention.flops, work.attention.recomputed
    if rates.efficiency:
        return flops / (peak * rates.efficiency)
    one = flops / (3 + recomputed)
    forward, backward = fitted.attention_shares(device.name, work.attention.seq_length)
    return one * ((1 + recomputed) / forward + 2 * _BACKWARD_PRODUCTS / backward) / peak


def _exposed_traffic(
    work: GpuWork, device: Device, rates: Rates, fitted: FittedRates, compute: float
) -> list[tuple[Traffic, float, float]]:
    """Traffic with its seconds and those that nothing hides. What shares a window hides under it together, a fitted
    share of the shorter one.
    """
    windows = {"none": 0.0, "layer": compute / 2, "backward": 2 / 3 * compute / work.micro_batches, "step": compute}
    timed = [(each, _traffic_seconds(each, device, rates, work.gpus_per_host)) for each in work.traffic]
    result = []
    for traffic, seconds in timed:
        together = sum(other for each, other in timed if each.window == traffic.window)
        hidden = fitted.overlap * min(1.0, windows[traffic.window] / together) if together else 0.0
        result.append((traffic, seconds, seconds * (1 - hidden)))
    return result


def _traffic_seconds(traffic: Traffic, device: Device, rates: Rates, gpus_per_host: int) -> float:
    network = rates.network / gpus_per_host if rates.network else device.network * rates.link_efficiency
    link = traffic.link_bytes / (device.link * rates.link_efficiency)
    return max(link, traffic.network_bytes / network) + traffic.calls * _CALL_SECONDS
