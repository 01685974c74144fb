# SPDX-License-Identifier: Apache-2.0
"""The effect of each tuned default on the plan: the same run without it. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.memory_estimate import estimate_memory
from harness.plan.memory.zero_partitions import local_num_parameters
from harness.plan.settings.plan_settings import PlanSettings, settings_of
from harness.plan.time import comm_volume
from harness.plan.time.rates import Rates
from harness.plan.time.step_time import estimate_step_time
from harness.run.resolved_run import ResolvedRun
from harness.run.tuned_default import TunedDefault


@dataclass(frozen=True, slots=True)
class DefaultImpact:
    """The run with the default less the run without it: bytes of a rank's GPU and of a host at their peaks, bytes that
    a rank sends in a step for ZeRO, seconds a step (None without a planned time).
    """

    tuned_default: TunedDefault
    gpu_bytes: int
    host_bytes: int
    wire_bytes: float
    step_seconds: float | None


def compute_impacts(
    run: ResolvedRun, model: ModelFacts, settings: PlanSettings, device: Device | None, rates: Rates
) -> tuple[DefaultImpact, ...]:
    """One for each tuned default of the run."""
    impacts = []
    memory, time = estimate_memory(model, settings, device), estimate_step_time(model, settings, device, rates)
    for default in run.tuned_defaults or ():
        other_defaults = tuple(other for other in run.tuned_defaults or () if other is not default)
        settings_without = settings_of(run._replace(tuned_defaults=other_defaults))
        if settings_without is None:
            continue
        memory_without, time_without = (
            estimate_memory(model, settings_without, device),
            estimate_step_time(model, settings_without, device, rates),
        )
        seconds = time.seconds - time_without.seconds if time and time_without else None
        gpu, host = memory.gpu_peak - memory_without.gpu_peak, memory.host_peak - memory_without.host_peak
        impacts.append(
            DefaultImpact(
                default, gpu, host, _wire_bytes(model, settings) - _wire_bytes(model, settings_without), seconds
            )
        )
    return tuple(impacts)


def _wire_bytes(model: ModelFacts, settings: PlanSettings) -> float:
    size = float(local_num_parameters(model, settings))
    return (
        (comm_volume.all_gather_bytes(size, settings, model) + comm_volume.gradient_reduction_bytes(size, settings))
        * (settings.zero_world_size - 1)
        / settings.zero_world_size
    )
