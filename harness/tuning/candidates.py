"""Which of the planner's choices are worth a short run: the fastest by plan, not all alike, none without hope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.facts.devices import Device, find_device
from harness.facts.model_lookup import ModelFacts
from harness.plan.alternatives import Alternative
from harness.plan.plan_settings import PlanSettings
from harness.plan.rates import Rates
from harness.plan.settings_search import HEADROOM
from harness.plan.step_time import estimate_step_time
from harness.tuning.spec_changes import SpecChanges

MEMORY_TOLERANCE = 0.10
"""A plan that is short of memory by no more than this may still fit: it is tried, and may run out of memory."""
SIMILARITY_PENALTY = 0.10
"""How far the plan's times are off, about: each further choice of one kind counts as slower by this, and so does one
without headroom, so that few trials see several kinds.
"""
REFERENCE_GPU = "A100-80GB"
"""By its rates choices are put in order where the device's own are not known; no time of it is shown."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something to try: what it is in words, its plan, and the keys that make it. Of the spec as it is: no keys."""

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
    """Every choice beside the run's own that may fit, the most promising first. `disks`: the spec names a path on NVMe,
    so that states may go there.
    """
    left = [r for r in alternatives if r.settings != run and not exceeds_memory(r) and (allow_nvme or not r.nvme_bytes)]
    seconds = {id(r): expected_step_seconds(r, model, rates) for r in left}
    seen: Counter[tuple[object, ...]] = Counter()
    while left:
        best = min(left, key=lambda r: (seconds[id(r)] * _penalty(r, seen), -r.settings.micro_batch))
        left.remove(best)
        seen[_stage_and_offload(best)] += 1
        yield best


def exceeds_memory(rung: Alternative) -> bool:
    """Is the plan short of memory by more than it may be wrong?"""
    return rung.fit.headroom is not None and rung.fit.headroom < -MEMORY_TOLERANCE


def expected_step_seconds(rung: Alternative, model: ModelFacts, rates: Rates | None) -> float:
    """Seconds a step to put choices in order by: planned, else as on the stand-in."""
    time = rung.time or estimate_step_time(model, rung.settings, _reference_device(), rates)
    return time.seconds if time else 0.0


def _reference_device() -> Device | None:
    return find_device(REFERENCE_GPU)


def _penalty(rung: Alternative, seen: Counter[tuple[object, ...]]) -> float:
    tight = rung.fit.headroom is not None and rung.fit.headroom < HEADROOM
    return (1 + SIMILARITY_PENALTY * seen[_stage_and_offload(rung)]) * (1 + SIMILARITY_PENALTY * tight)


def _stage_and_offload(rung: Alternative) -> tuple[object, ...]:
    s = rung.settings
    return s.stage, s.optimizer_device, s.param_device
