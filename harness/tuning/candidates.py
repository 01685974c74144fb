# SPDX-License-Identifier: Apache-2.0
"""The planner's alternatives that are worth a short run: the fastest by plan, of several kinds, none without hope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.facts.devices import find_device
from harness.facts.model_lookup import ModelFacts
from harness.plan.search.alternatives import Alternative
from harness.plan.search.settings_search import HEADROOM
from harness.plan.search.spec_changes import SpecChanges
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.rates import Rates
from harness.plan.time.step_time import estimate_step_time

MEMORY_TOLERANCE = 0.10
"""A plan that lacks no more than this share of memory may still fit: tune tries it, and it may run out of memory."""
SIMILARITY_PENALTY = 0.10
"""The rough error of the planned times: each further alternative of one kind counts as slower by this, and so does one
without headroom, so that few trials cover several kinds.
"""
REFERENCE_GPU = "A100-80GB"
"""The device whose rates order the alternatives where the device's own are unknown; no time of it is shown."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate for a trial: its title, its plan, and the keys that make it. No keys for the spec as it is."""

    title: str
    alternative: Alternative
    changes: SpecChanges = field(default_factory=dict)

    @property
    def planned_step_seconds(self) -> float | None:
        """Seconds a step, where the device's rates are known."""
        return self.alternative.time.seconds if self.alternative.time else None


def order_alternatives(
    alternatives: Iterable[Alternative], run: PlanSettings, model: ModelFacts, rates: Rates | None, *, allow_nvme: bool
) -> Iterator[Alternative]:
    """Every other alternative than the run's own that may fit, the most promising first. `allow_nvme`: the spec names a
    path on NVMe, and states may go there.
    """
    remaining = [
        alternative
        for alternative in alternatives
        if alternative.settings != run
        and (alternative.fit.headroom is None or alternative.fit.headroom >= -MEMORY_TOLERANCE)  # its error explains it
        and (allow_nvme or not alternative.nvme_bytes)
    ]
    seconds = {id(alternative): expected_step_seconds(alternative, model, rates) for alternative in remaining}
    num_of_kind: Counter[tuple[object, ...]] = Counter()
    while remaining:
        best = min(
            remaining,
            key=lambda alternative: (
                seconds[id(alternative)] * _similarity_penalty(alternative, num_of_kind),
                -alternative.settings.micro_batch,
            ),
        )
        remaining.remove(best)
        num_of_kind[_stage_and_offload(best)] += 1
        yield best


def expected_step_seconds(alternative: Alternative, model: ModelFacts, rates: Rates | None) -> float:
    """Seconds a step for the order: planned, else those of the reference device."""
    time = alternative.time or estimate_step_time(model, alternative.settings, find_device(REFERENCE_GPU), rates)
    return time.seconds if time else 0.0


def _similarity_penalty(alternative: Alternative, num_of_kind: Counter[tuple[object, ...]]) -> float:
    tight = alternative.fit.headroom is not None and alternative.fit.headroom < HEADROOM
    return (1 + SIMILARITY_PENALTY * num_of_kind[_stage_and_offload(alternative)]) * (1 + SIMILARITY_PENALTY * tight)


def _stage_and_offload(alternative: Alternative) -> tuple[object, ...]:
    settings = alternative.settings
    return settings.stage, settings.optimizer_device, settings.param_device
