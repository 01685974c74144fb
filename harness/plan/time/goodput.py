# SPDX-License-Identifier: Apache-2.0
"""Time and cost of a whole run: checkpoints, their best interval, hours and money. Arithmetic on a step's time."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.rates import Rates


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """Bytes of one checkpoint, seconds that the run waits for it, and the interval that loses least."""

    bytes: int
    seconds: float
    failure_seconds: float
    interval: float
    lost: float


def checkpoint_bytes(settings: PlanSettings, parameters: int, frozen_bytes: int = 0) -> int:
    """Masters and optimizer states of all ranks, below stage 3 weights as trained too: in bf16 with Adam 14 bytes a
    parameter, 12 at stage 3 (a rehearsal on 2 ranks wrote 61.9 MiB where 14 would be 72.2). Of frozen parameters the
    weights alone, at every stage.
    """
    weights = settings.bytes_per_parameter.parameters if settings.stage < 3 else 0
    states = settings.bytes_per_parameter.master + settings.bytes_per_parameter.states
    return parameters * (weights + states) + frozen_bytes


def optimal_interval_young(cost: float, failure_seconds: float) -> float:
    """Seconds of work between checkpoints, sqrt(2 C M) (Young 1974): C seconds a checkpoint, M between failures."""
    return sqrt(2 * cost * failure_seconds)


def optimal_interval_daly(cost: float, failure_seconds: float) -> float:
    """The same with Daly's correction (2006): sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18 M) - C, or M for C >= 2 M."""
    if cost >= 2 * failure_seconds:
        return failure_seconds
    ratio = cost / (2 * failure_seconds)
    return optimal_interval_young(cost, failure_seconds) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost


def checkpoint_cost(settings: PlanSettings, parameters: int, rates: Rates, frozen_bytes: int = 0) -> CheckpointCost:
    """For a run that stops as a whole when one of its GPUs fails; every host writes its own part, all to one file
    system.
    """
    size = checkpoint_bytes(settings, parameters, frozen_bytes)
    cost = size / min(settings.num_hosts * rates.checkpoint_write, rates.checkpoint_shared)
    failure_seconds = rates.failure_hours * 3600 / settings.world_size
    interval = optimal_interval_daly(cost, failure_seconds)
    lost_share = cost / interval + (interval / 2 + rates.restart_seconds) / failure_seconds
    return CheckpointCost(size, cost, failure_seconds, interval, min(1.0, lost_share))
