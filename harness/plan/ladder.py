"""The same run at other stages and offloads: what would fit, and how fast each would be. Choices that the gates refuse
(pipeline above stage 1, AutoTP at stage 3) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.facts.devices import Device
from harness.facts.models import ModelFacts
from harness.plan.memory import Capacity, Fit, Memory, alternative, fit, memory_of
from harness.plan.settings import Place, Settings
from harness.plan.time import StepTime, step_time

_RUNGS: tuple[tuple[int, Place, Place], ...] = (
    (0, "none", "none"),
    (1, "none", "none"),
    (2, "none", "none"),
    (2, "cpu", "none"),
    (3, "none", "none"),
    (3, "cpu", "none"),
    (3, "cpu", "cpu"),
    (3, "nvme", "none"),
    (3, "nvme", "nvme"),
)


@dataclass(frozen=True, slots=True)
class Rung:
    """One alternative: bytes a GPU, a host, a host's NVMe; seconds a step; `chosen` marks the run itself."""

    title: str
    settings: Settings
    gpu: int
    host: int
    nvme: int
    fit: Fit
    time: StepTime | None
    chosen: bool


def ladder(model: ModelFacts, settings: Settings, device: Device | None, capacity: Capacity) -> tuple[Rung, ...]:
    """The run among its alternatives, in rising order of stage and offload."""
    return tuple(_rung(model, settings, other, device, capacity) for other in _alternatives(settings))


def _rung(model: ModelFacts, run: Settings, other: Settings, device: Device | None, capacity: Capacity) -> Rung:
    memory: Memory = memory_of(model, other, device)
    return Rung(
        title=title(other, run),
        settings=other,
        gpu=memory.gpu_peak,
        host=memory.host_peak,
        nvme=memory.nvme,
        fit=fit(memory, capacity),
        time=step_time(model, other, device),
        chosen=other == run,
    )


def _alternatives(run: Settings) -> Iterator[Settings]:
    here = (run.stage, run.optimizer_at, run.parameters_at)
    rungs = [rung for rung in _RUNGS if _allowed(rung[0], run)]
    if here not in rungs:
        rungs = sorted([*rungs, here], key=lambda rung: (rung[0], rung[1] != "none", rung[2] != "none"))
    for stage, optimizer_at, parameters_at in rungs:
        if (stage, optimizer_at, parameters_at) != here:
            yield alternative(run, stage=stage, optimizer_at=optimizer_at, parameters_at=parameters_at)
            continue
        yield run
        if not run.checkpointing:
            yield alternative(run, checkpointing=True)


def _allowed(stage: int, run: Settings) -> bool:
    limit = 1 if run.pipeline > 1 else 2 if run.tensor > 1 else 3
    return stage <= limit


def title(s: Settings, run: Settings | None = None) -> str:
    """`ZeRO-3, optimizer and parameters on cpu`."""
    text = f"ZeRO-{s.stage}" if s.stage else "no ZeRO (stage 0)"
    if s.optimizer_at == s.parameters_at != "none":
        text += f", optimizer and parameters on {s.optimizer_at}"
    elif s.optimizer_at != "none":
        text += f", optimizer on {s.optimizer_at}"
        text += f", parameters on {s.parameters_at}" if s.parameters_at != "none" else ""
    elif s.parameters_at != "none":
        text += f", parameters on {s.parameters_at}"
    if run is not None and s.checkpointing and not run.checkpointing:
        text += ", gradient checkpointing"
    return text
