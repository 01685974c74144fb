"""Which of the planner's choices are worth a short run: the fastest by plan, not all alike, none without hope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.facts.devices import Device, find_device
from harness.facts.models import ModelFacts
from harness.plan.ladder import Rung
from harness.plan.rates import Rates
from harness.plan.search import HEADROOM
from harness.plan.settings import Settings
from harness.plan.time import step_time
from harness.tuning.keys import Sets

NEAR = 0.10
"""A plan that is short of memory by no more than this may still fit: it is tried, and may run out of memory."""
ALIKE = 0.10
"""How far the plan's times are off, about: each further choice of one kind counts as slower by this, and so does one
without headroom, so that few trials see several kinds.
"""
STAND_IN = "A100-80GB"
"""By its rates choices are put in order where the device's own are not known; no time of it is shown."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something to try: what it is in words, its plan, and the keys that make it. Of the spec as it is: no keys."""

    title: str
    rung: Rung
    sets: Sets = field(default_factory=dict)

    @property
    def planned(self) -> float | None:
        """Seconds a step, where the device's rates are known."""
        return self.rung.time.seconds if self.rung.time else None


def in_order(
    rungs: Iterable[Rung], run: Settings, model: ModelFacts, rates: Rates | None, *, disks: bool
) -> Iterator[Rung]:
    """Every choice beside the run's own that may fit, the most promising first. `disks`: the spec names a path on NVMe,
    so that states may go there.
    """
    left = [r for r in rungs if r.settings != run and not hopeless(r) and (disks or not r.nvme)]
    seconds = {id(r): expected(r, model, rates) for r in left}
    seen: Counter[tuple[object, ...]] = Counter()
    while left:
        best = min(left, key=lambda r: (seconds[id(r)] * _handicap(r, seen), -r.settings.micro_batch))
        left.remove(best)
        seen[_kind(best)] += 1
        yield best


def hopeless(rung: Rung) -> bool:
    """Is the plan short of memory by more than it may be wrong?"""
    return rung.fit.headroom is not None and rung.fit.headroom < -NEAR


def expected(rung: Rung, model: ModelFacts, rates: Rates | None) -> float:
    """Seconds a step to put choices in order by: planned, else as on the stand-in."""
    time = rung.time or step_time(model, rung.settings, _stand_in(), rates)
    return time.seconds if time else 0.0


def _stand_in() -> Device | None:
    return find_device(STAND_IN)


def _handicap(rung: Rung, seen: Counter[tuple[object, ...]]) -> float:
    tight = rung.fit.headroom is not None and rung.fit.headroom < HEADROOM
    return (1 + ALIKE * seen[_kind(rung)]) * (1 + ALIKE * tight)


def _kind(rung: Rung) -> tuple[object, ...]:
    s = rung.settings
    return s.stage, s.optimizer_at, s.parameters_at
