# SPDX-License-Identifier: Apache-2.0
"""The planner's rates as costs of single operations, for the clock of the simulated device.

Every figure is one of `harness.plan.time.rates`, `fitted_rates` and `link_rates`, as `step_time` uses it; a calibration
scales both alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.facts.devices import Device
from harness.plan.planner import Plan
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.fitted_rates import FITTED, FittedRates
from harness.plan.time.rates import LinkRates, Rates, link_rates
from harness.plan.time.step_time import MESSAGE_LATENCY, cpu_step_rate, launch_seconds
from harness.plan.time.step_work import StepWork, count_step_work

_KERNELS_OF_A_LAYER = 58
"""Kernels of one pass through a Llama layer of `transformers`: those that the seconds of a launch are fitted to."""
_UNFUSED_PASSES = 10.1
"""Times that these kernels, without products and attention, move what the layer saves for backward. The fitted
`activation_passes` are fewer, because the fitted share of products has the rest: kernels in the passes are scaled to
them. Both numbers were counted in simulations of Llama 3.1 8B (32 layers) and 70B (8 layers) at stage 3.
"""


@dataclass(frozen=True, slots=True)
class ClockRates:
    """Seconds of one unit of work on one rank while all ranks of a host work; `links` in bytes a second.

    `matmul`, `attention_forward`, `attention_backward`: of an operation. `pass_memory`, `step_memory`: of a byte that
    a kernel reads or writes, in the passes and at the step. `launch`: the host's, of a kernel; `gather_issue`,
    `reduction_issue`: the host's, of a byte that is gathered or reduced; `step`: the host's, once a step. `pcie`: of a
    byte in either direction. `host_memory`: of a byte that an op of the host reads or writes. `disk_read`,
    `disk_write`: of a byte.
    """

    matmul: float
    attention_forward: float
    attention_backward: float
    pass_memory: float
    step_memory: float
    launch: float
    gather_issue: float
    reduction_issue: float
    step: float
    pcie: float
    host_memory: float
    disk_read: float
    disk_write: float
    message: float
    collective_scale: float
    links: LinkRates

    def to_json(self) -> dict[str, Any]:
        """Values for the request."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> ClockRates:
        """The rates of a request."""
        return ClockRates(**{**values, "links": LinkRates(**values["links"])})


def clock_rates(plan: Plan) -> ClockRates | None:
    """The rates of a plan's machine. None where the plan has no time, without a known GPU, model or ranks, and for a
    pipeline: a stage waits for others, which are not simulated.
    """
    if plan.time is None or plan.model is None or plan.settings is None or plan.device is None:
        return None
    if plan.settings.pipeline_parallel_size > 1:
        return None
    return _rates(count_step_work(plan.model, plan.settings), plan.settings, plan.device, plan.rates, FITTED)


def _rates(work: StepWork, settings: PlanSettings, device: Device, rates: Rates, fitted: FittedRates) -> ClockRates:
    peak = device.flops_16 if settings.param_bytes == 2 else device.flops_32
    experts = fitted.expert_share if work.compute.experts else 1.0
    matmul = rates.efficiency or fitted.matmul_share(device.name, work.compute.width, work.compute.rows) * experts
    forward, backward = fitted.attention_shares(device.name, settings.seq_length)
    scale, memory = rates.scale, 1 / (device.bandwidth * fitted.memory_share)
    host = cpu_step_rate(settings, device, rates, fitted) / settings.ranks_per_host
    collectives = work.collectives
    is_alone = settings.zero_world_size == 1
    return ClockRates(
        matmul=scale.compute / (peak * matmul),
        attention_forward=scale.compute / (peak * (rates.efficiency or forward)),
        attention_backward=scale.compute / (peak * (1.25 * rates.efficiency or backward)),
        pass_memory=0.0 if rates.efficiency else scale.compute * memory * fitted.activation_passes / _UNFUSED_PASSES,
        step_memory=scale.gpu_optimizer * memory,
        launch=scale.compute * launch_seconds(settings, fitted) / _KERNELS_OF_A_LAYER,
        gather_issue=0.0 if is_alone else _per_byte(collectives.gathers * fitted.gather_seconds, collectives.gather),
        reduction_issue=0.0
        if is_alone
        else _per_byte(collectives.reductions * fitted.reduction_seconds, collectives.reduce),
        step=scale.gpu_optimizer * fitted.step_seconds,
        pcie=scale.pcie / (device.pcie * rates.link_efficiency),
        host_memory=scale.cpu_optimizer / host,
        disk_read=scale.nvme * settings.ranks_per_host / rates.nvme_read,
        disk_write=scale.nvme * settings.ranks_per_host / rates.nvme_write,
        message=MESSAGE_LATENCY,
        collective_scale=scale.collectives,
        links=link_rates(settings, device, rates),
    )


def _per_byte(seconds: float, payload: float) -> float:
    return seconds / payload if payload else 0.0
