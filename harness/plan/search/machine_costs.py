# SPDX-License-Identifier: Apache-2.0
"""Costs of a run on machines that can be rented: the best settings on each kind and number of GPUs, by money.

Arithmetic only; the caller makes the settings of a number of GPUs, and runs the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.facts.devices import Device, usual_gpus_per_host
from harness.facts.gpu_prices import GpuPrice
from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.memory_estimate import HOST_RESERVE, Capacity, Fit
from harness.plan.memory.zero_partitions import count_frozen_bytes, count_trainable
from harness.plan.search.alternatives import Alternative
from harness.plan.search.settings_search import HEADROOM, rank_alternatives, search_settings
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.cost_range import CostRange, cost_range
from harness.plan.time.goodput import checkpoint_cost
from harness.plan.time.rates import Rates
from harness.plan.time.step_time import estimate_step_time
from harness.run.resolved_run import ResolvedRun


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs of one kind: parts of a host, or whole hosts as they are built. `host_memory`: bytes a host."""

    device: Device
    gpus: int
    host_memory: int
    price: GpuPrice

    @property
    def gpus_per_host(self) -> int:
        """GPUs of a host."""
        return min(self.gpus, usual_gpus_per_host(self.device.name))

    @property
    def capacity(self) -> Capacity:
        """Memory of a GPU and of a host; no disks are known."""
        return Capacity(self.device.memory, self.host_memory, None)


@dataclass(frozen=True, slots=True)
class MachineCost:
    """A choice of settings on a machine, and what the run costs there."""

    machine: Machine
    alternative: Alternative
    cost: CostRange

    @property
    def money(self) -> float:
        """Dollars of the whole run."""
        return self.cost.money or 0.0


class Candidates:
    """Every setting of the search on a number of GPUs with its memory, for all kinds of GPU; none is on disks, of which
    no machine is known. `keep`: leaves those that the user's own keys allow.
    """

    def __init__(
        self,
        run: ResolvedRun,
        model: ModelFacts,
        rates: Rates,
        keep: Callable[[tuple[Alternative, ...]], tuple[Alternative, ...]] = lambda found: found,
    ) -> None:
        self.model, self.rates = model, rates
        self._all = keep(search_settings(run, model, None, Capacity(None, None, None), rates, with_nvme=False))

    def estimate_costs(self, machine: Machine, tokens: float) -> tuple[MachineCost, ...]:
        """The candidates that fit with headroom, cheapest first: the largest micro-batch of each place."""
        timed = self._timed(_largest_micro_batches(_fitting(self._all, machine.capacity)), machine.device)
        costs = _costs(self.model, timed, machine, self.rates, tokens)
        return tuple(sorted(costs, key=lambda each: each.money))

    def rank_on_machine(self, machine: Machine) -> tuple[Alternative, ...]:
        """The candidates that fit with headroom in the order of the search."""
        return rank_alternatives(self._timed(_fitting(self._all, machine.capacity), machine.device))

    def _timed(self, fitting: Iterable[Alternative], device: Device) -> Iterator[Alternative]:
        """With the time of a step."""
        for each in fitting:
            yield replace(each, time=estimate_step_time(self.model, each.settings, device, self.rates))


def _costs(
    model: ModelFacts, timed: Iterable[Alternative], machine: Machine, rates: Rates, tokens: float
) -> Iterator[MachineCost]:
    for each in timed:
        if each.time is not None:
            lost = lost_share(model, each.settings, rates)
            yield MachineCost(machine, each, cost_range(tokens, each.time, each.settings, lost, machine.price.dollars))


def lost_share(model: ModelFacts, settings: PlanSettings, rates: Rates) -> float:
    """Share of the time that checkpoints and failures take, as in the plan of these settings."""
    trainable, _ = count_trainable(model, settings)
    return checkpoint_cost(settings, trainable, rates, count_frozen_bytes(model, settings)).lost


def _fitting(candidates: Iterable[Alternative], capacity: Capacity) -> Iterator[Alternative]:
    """Those that certainly fit, with headroom, by the peaks that they have: `check_fit` would compute them again."""
    gpu, host = float(capacity.gpu or 0), float(capacity.host or 0) * (1 - HOST_RESERVE)
    for candidate in candidates:
        shares = {"GPU memory": candidate.gpu_peak / gpu, "host memory": candidate.host_peak / host}
        binding = max(shares, key=lambda name: shares[name])
        headroom = 1 - shares[binding]
        if not candidate.nvme_bytes and headroom >= HEADROOM and candidate.memory.gpu_peak_range[1] <= gpu:
            yield replace(candidate, fit=Fit(True, binding, headroom))


def _largest_micro_batches(candidates: Iterable[Alternative]) -> Iterable[Alternative]:
    """Of those that differ in the micro-batch alone the largest: fewer micro-batches never take longer."""
    largest: dict[tuple[object, ...], Alternative] = {}
    for candidate in sorted(candidates, key=lambda each: each.settings.micro_batch):
        largest[place_of(candidate.settings)] = candidate
    return largest.values()


def place_of(settings: PlanSettings) -> tuple[object, ...]:
    """All that distinguishes settings but for their batch: stage, offload, parallel sizes, recomputation."""
    return (
        settings.stage,
        settings.optimizer_device,
        settings.param_device,
        settings.tensor_parallel_size,
        settings.pipeline_parallel_size,
        settings.sequence_parallel_size,
        settings.checkpointing,
        settings.checkpoint_every,
        settings.layers_per_segment,
        settings.keeps_attention,
    )


def count_gpus(most: int) -> Sequence[int]:
    """Parts of a host, then whole hosts, doubled: 1, 2, 4, 8, 16, 32, ..."""
    return [2**power for power in range(most.bit_length()) if 2**power <= most]
