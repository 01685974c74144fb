# SPDX-License-Identifier: Apache-2.0
"""The collectives of one optimizer step by kind and purpose: bytes that a rank sends, and their seconds.

The work is that of `step_work` and the rates are those of `link_rates`, so that the rows add up to the parts of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.rates import Rates, group_rates
from harness.plan.time.step_work import StepWork, count_step_work

Collective = Literal["all-reduce", "reduce-scatter", "reduce", "all-gather", "all-to-all", "send"]
_RATE_OF_GROUP = {"data": "zero", "hpZ": "hpz"} | {name: name for name in ("tensor", "sequence", "pipeline")}
"""The field of `GroupRates`."""


@dataclass(frozen=True, slots=True)
class CollectiveTraffic:
    """One kind of collective of a step. `group`: the ranks that take part, `ranks` of them; `sent`: bytes that a rank
    sends; `seconds` of these at the group's rate, hidden ones included, None where no rate is known; `of_ddp`: `sent`
    by the one all-reduce of gradients that DDP has, of collectives of data parallelism alone.
    """

    collective: Collective
    carries: str
    group: str
    ranks: int
    sent: float
    seconds: float | None
    of_ddp: float | None = None


def list_collectives(
    model: ModelFacts, settings: PlanSettings, device: Device | None, rates: Rates, work: StepWork | None = None
) -> tuple[CollectiveTraffic, ...]:
    """The rows that move bytes. `work`: that of these settings, where the caller has counted it already."""
    counted = (work or count_step_work(model, settings)).collectives
    links = group_rates(settings, device, rates) if device is not None and not device.is_cpu else None
    data, hpz = settings.zero_world_size, settings.hpz_partition_size
    ring, moved = (data - 1) / data, "forward and backward" if settings.stage == 3 else "after the step"
    of_ddp = count_step_work(model, replace(settings, stage=0, quantized_gradients=False)).collectives.reduce * ring
    rows: list[CollectiveTraffic] = []

    def add(collective: Collective, carries: str, group: str, ranks: int, sent: float) -> None:
        if sent <= 0:
            return
        rate = None if links is None else getattr(links, _RATE_OF_GROUP[group])
        seconds = None if rate is None else sent / rate * rates.scale.collectives
        is_data = group in ("data", "hpZ")
        rows.append(
            CollectiveTraffic(
                collective, carries, group, ranks, sent, seconds, sent / of_ddp if is_data and of_ddp else None
            )
        )

    add(_gradient_collective(settings), _gradients(settings), "data", data, counted.reduce * ring)
    add("all-gather", f"parameters {moved}", "data", data, counted.gather * ring)
    add("all-gather", "parameters, second shard", "hpZ", hpz, counted.hpz_gather * (hpz - 1) / hpz)
    activations = "activations and their gradients"
    add("all-reduce", activations, "tensor", settings.tensor_parallel_size, counted.tensor)
    add("all-to-all", "heads for sequences", "sequence", settings.sequence_parallel_size, counted.sequence)
    add("send", activations, "pipeline", settings.pipeline_parallel_size, counted.pipeline)
    return tuple(rows)


def _gradient_collective(settings: PlanSettings) -> Collective:
    if settings.quantized_gradients:
        return "all-to-all"
    if settings.stage == 3:
        return "reduce-scatter"
    return "all-reduce" if settings.stage == 0 or settings.multi_rank_bucket_allreduce else "reduce"


def _gradients(settings: PlanSettings) -> str:
    """`gradients in 16 bits`, or in the 32 that `communication_data_type: fp32` asks for."""
    times = settings.accumulation if settings.stage >= 2 else 1
    return f"gradients in {8 * settings.comm_bytes} bits" + (f", {times} times" if times > 1 else "")
