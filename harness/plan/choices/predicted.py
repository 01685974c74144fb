"""What the plan says of each choice: the same run without it. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.devices import Device
from harness.facts.models import ModelFacts
from harness.plan import traffic
from harness.plan.choices.choice import Choice
from harness.plan.memory import memory_of
from harness.plan.rates import Rates
from harness.plan.run import Run
from harness.plan.settings import Settings, settings_of
from harness.plan.shards import local_size
from harness.plan.time import step_time


@dataclass(frozen=True, slots=True)
class Difference:
    """With the choice less without it: bytes of a rank's GPU and of a host at their peaks, bytes a rank puts on the
    wire in a step for ZeRO, seconds a step (None where no time is planned).
    """

    choice: Choice
    gpu: int
    host: int
    wire: float
    seconds: float | None


def differences(
    run: Run, model: ModelFacts, settings: Settings, device: Device | None, rates: Rates
) -> tuple[Difference, ...]:
    """One for each choice of the run."""
    found = []
    memory, time = memory_of(model, settings, device), step_time(model, settings, device, rates)
    for choice in run.choices or ():
        rest = tuple(other for other in run.choices or () if other is not choice)
        without = settings_of(run._replace(choices=rest))
        if without is None:
            continue
        before, slower = memory_of(model, without, device), step_time(model, without, device, rates)
        seconds = time.seconds - slower.seconds if time and slower else None
        gpu, host = memory.gpu_peak - before.gpu_peak, memory.host_peak - before.host_peak
        found.append(Difference(choice, gpu, host, _wire(model, settings) - _wire(model, without), seconds))
    return tuple(found)


def _wire(model: ModelFacts, s: Settings) -> float:
    size = float(local_size(model, s))
    return (traffic.gathers(size, s, model.per_layer) + traffic.reductions(size, s)) * (s.shards - 1) / s.shards
