"""The same run at other stages and offloads: what would fit, and how fast each would be. Choices that the gates refuse
(pipeline above stage 1) are left out. Other batches and degrees are in `harness.plan.search`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.facts.devices import Device
from harness.facts.models import ModelFacts
from harness.plan.memory import Capacity, Fit, Memory, alternative, fit, memory_of
from harness.plan.rates import Rates
from harness.plan.settings import Place, Settings
from harness.plan.time import StepTime, step_time

RUNGS: tuple[tuple[int, Place, Place], ...] = (
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
SMALL_SUB_GROUP = 100_000_000


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
    memory: Memory = field(repr=False, compare=False)


def ladder(
    model: ModelFacts, settings: Settings, device: Device | None, capacity: Capacity, rates: Rates | None = None
) -> tuple[Rung, ...]:
    """The run among its alternatives, in rising order of stage and offload."""
    return tuple(rung(model, settings, other, device, capacity, rates) for other in _alternatives(settings))


def rung(
    model: ModelFacts,
    run: Settings,
    other: Settings,
    device: Device | None,
    capacity: Capacity,
    rates: Rates | None = None,
    memory: Memory | None = None,
) -> Rung:
    """One alternative, counted. `run` is what its title is told against."""
    memory = memory or memory_of(model, other, device)
    return Rung(
        title=title(other, run),
        settings=other,
        gpu=memory.gpu_peak,
        host=memory.host_peak,
        nvme=memory.nvme,
        fit=fit(memory, capacity),
        time=step_time(model, other, device, rates),
        chosen=other == run,
        memory=memory,
    )


def _alternatives(run: Settings) -> Iterator[Settings]:
    here = (run.stage, run.optimizer_at, run.parameters_at)
    rungs = [rung for rung in RUNGS if allowed(rung[0], run)]
    if here not in rungs:
        rungs = sorted([*rungs, here], key=lambda rung: (rung[0], rung[1] != "none", rung[2] != "none"))
    for stage, optimizer_at, parameters_at in rungs:
        if (stage, optimizer_at, parameters_at) != here:
            yield placed(run, stage, optimizer_at, parameters_at)
            continue
        yield run
        if not run.checkpointing:
            yield alternative(run, checkpointing=True)


def placed(run: Settings, stage: int, optimizer_at: Place, parameters_at: Place) -> Settings:
    """The run at another stage with other places; on NVMe with small sub-groups and pipelined swapping."""
    changes: dict[str, object] = {"stage": stage, "optimizer_at": optimizer_at, "parameters_at": parameters_at}
    if optimizer_at == "nvme":
        changes |= {"sub_group": min(run.sub_group, SMALL_SUB_GROUP), "pipeline_read": True, "pipeline_write": True}
        changes |= {"optimizer_buffers": max(run.optimizer_buffers, 3 * run.swap_set)}
    if parameters_at == "nvme":
        changes |= {
            "sub_group": min(run.sub_group, SMALL_SUB_GROUP),
            "parameter_buffers": max(run.parameter_buffers, 16),
        }
    return alternative(run, **changes)


def allowed(stage: int, run: Settings) -> bool:
    """Does DeepSpeed train at this stage with the run's degrees?"""
    return stage <= (1 if run.pipeline > 1 else 3)


def title(s: Settings, run: Settings | None = None) -> str:
    """`ZeRO-3, optimizer and parameters on cpu`; against a run also what else differs from it."""
    text = f"ZeRO-{s.stage}" if s.stage else "no ZeRO (stage 0)"
    if s.optimizer_at == s.parameters_at != "none":
        text += f", optimizer and parameters on {s.optimizer_at}"
    elif s.optimizer_at != "none":
        text += f", optimizer on {s.optimizer_at}"
        text += f", parameters on {s.parameters_at}" if s.parameters_at != "none" else ""
    elif s.parameters_at != "none":
        text += f", parameters on {s.parameters_at}"
    return text if run is None else text + "".join(f", {words}" for words in _differences(s, run))


def _differences(s: Settings, run: Settings) -> Iterator[str]:
    for name, mine, theirs in (
        ("tensor", s.tensor, run.tensor),
        ("pipeline", s.pipeline, run.pipeline),
        ("sequence", s.sequence_parallel, run.sequence_parallel),
    ):
        if mine != theirs:
            yield f"{name} {mine}"
    if s.micro_batch != run.micro_batch:
        yield f"micro-batch {s.micro_batch}"
    if s.checkpointing != run.checkpointing:
        yield "gradient checkpointing" if s.checkpointing else "no checkpointing"
