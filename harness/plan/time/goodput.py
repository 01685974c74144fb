# SPDX-License-Identifier: Apache-2.0
"""Time and cost of a whole run: checkpoints, their best interval, hours and money. Arithmetic on a step's time."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from harness.facts.devices import Device
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.rates import Rates


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """Bytes of one checkpoint, seconds that its writing takes and that the run waits for it, the seconds between two
    failures of the run, and the interval that loses least. `waits`: `seconds`, or with `async_save` those of the copy.
    """

    bytes: int
    seconds: float
    failure_seconds: float
    interval: float
    lost: float
    waits: float = 0.0
    restart_seconds: float = 600.0

    def at_interval(self, save_steps: int, step_seconds: float) -> IntervalCost:
        """The loss with a save every so many steps. A save waits for the writing of the one before."""
        interval = save_steps * step_seconds
        waits = max(self.waits, self.seconds - interval)
        return IntervalCost(
            save_steps=save_steps,
            interval=interval,
            save_share=waits / (interval + waits),
            failure_share=min(1.0, (interval / 2 + self.restart_seconds) / self.failure_seconds),
            failure_loses=interval / 2,
        )


@dataclass(frozen=True, slots=True)
class IntervalCost:
    """The shares of the time that saves and that failures take with the run's own `save_steps`; `interval`: seconds of
    work from save to save, half of which, `failure_loses`, a failure loses on average.
    """

    save_steps: int
    interval: float
    save_share: float
    failure_share: float
    failure_loses: float

    @property
    def lost(self) -> float:
        """Both shares."""
        return min(1.0, self.save_share + self.failure_share)


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


def checkpoint_cost(
    settings: PlanSettings, parameters: int, rates: Rates, frozen_bytes: int = 0, device: Device | None = None
) -> CheckpointCost:
    """For a run that stops as a whole when one of its GPUs fails; every host writes its own part, all to one file
    system. With `async_save` the run waits for the copy to host memory, over PCIe where the device is known.
    """
    size = checkpoint_bytes(settings, parameters, frozen_bytes)
    copy = None
    if settings.copies_for_save and device is not None and device.pcie:
        copy = size / settings.world_size / (device.pcie * rates.link_efficiency)
    return cost_of_size(size, settings.num_hosts, settings.world_size, rates, copy)


def cost_of_size(size: int, hosts: int, gpus: int, rates: Rates, copy: float | None = None) -> CheckpointCost:
    """Of a checkpoint of so many bytes. `copy`: seconds that the run waits where a copy is written in the background,
    None where it waits for the writing.
    """
    seconds = size / min(hosts * rates.checkpoint_write, rates.checkpoint_shared)
    waits = seconds if copy is None else copy
    failure_seconds = rates.failure_hours * 3600 / gpus
    interval = optimal_interval_daly(waits, failure_seconds)
    if copy is not None:  # a save cannot begin before the one before it is written
        interval = max(interval, seconds)
    lost_share = waits / interval + (interval / 2 + rates.restart_seconds) / failure_seconds
    return CheckpointCost(size, seconds, failure_seconds, interval, min(1.0, lost_share), waits, rates.restart_seconds)
