# SPDX-License-Identifier: Apache-2.0
"""One alternative of a run: other settings with their memory, fit and speed, and their name in tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.memory_estimate import Capacity, Fit, MemoryEstimate, check_fit, estimate_memory
from harness.plan.settings.checkpointed_layers import checkpointing_value, describe_checkpointing
from harness.plan.settings.plan_settings import OffloadDevice, PlanSettings
from harness.plan.time.rates import Rates
from harness.plan.time.step_time import StepTime, estimate_step_time

STAGES_AND_OFFLOADS: tuple[tuple[int, OffloadDevice, OffloadDevice], ...] = (
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
_DEVICE_NAMES: Mapping[OffloadDevice, str] = {"none": "", "cpu": "CPU", "nvme": "NVMe"}
SMALL_SUB_GROUP = 100_000_000


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative: bytes a GPU, a host, a host's NVMe; seconds a step; `is_current` marks the run itself."""

    title: str
    settings: PlanSettings
    gpu_peak: int
    host_peak: int
    nvme_bytes: int
    fit: Fit
    time: StepTime | None
    is_current: bool
    memory: MemoryEstimate = field(repr=False, compare=False)


def evaluate_alternative(
    model: ModelFacts,
    run: PlanSettings,
    other: PlanSettings,
    device: Device | None,
    capacity: Capacity,
    rates: Rates | None = None,
) -> Alternative:
    """Memory and time of one alternative. Its title names the differences from `run`."""
    memory = estimate_memory(model, other, device)
    return Alternative(
        title=title_of(other, run),
        settings=other,
        gpu_peak=memory.gpu_peak,
        host_peak=memory.host_peak,
        nvme_bytes=memory.nvme_bytes,
        fit=check_fit(memory, capacity),
        time=estimate_step_time(model, other, device, rates),
        is_current=other == run,
        memory=memory,
    )


def kind_of(alternative: Alternative) -> tuple[object, ...]:
    """Stage, places and parallel sizes: a gate refuses kinds, seldom batches."""
    s = alternative.settings
    degrees = (s.tensor_parallel_size, s.pipeline_parallel_size, s.sequence_parallel_size)
    return (s.stage, s.optimizer_device, s.param_device, *degrees)


def best_of_each_kind(alternatives: Iterable[Alternative]) -> list[Alternative]:
    """The first one of every kind, in the order of their first ones."""
    best: dict[tuple[object, ...], Alternative] = {}
    for alternative in alternatives:
        best.setdefault(kind_of(alternative), alternative)
    return list(best.values())


def with_offload(
    run: PlanSettings, stage: int, optimizer_device: OffloadDevice, param_device: OffloadDevice
) -> PlanSettings:
    """The run at another stage with other offload devices; on NVMe with small sub-groups and pipelined swapping."""
    changes: dict[str, object] = {"stage": stage, "optimizer_device": optimizer_device, "param_device": param_device}
    changes["overlap_comm"] = stage == 3  # as DeepSpeed's default
    if optimizer_device == "nvme":
        changes |= {
            "sub_group_size": min(run.sub_group_size, SMALL_SUB_GROUP),
            "pipeline_read": True,
            "pipeline_write": True,
        }
        changes |= {"optimizer_buffers": max(run.optimizer_buffers, 3 * run.swap_buffers_per_sub_group)}
    if param_device == "nvme":
        changes |= {
            "sub_group_size": min(run.sub_group_size, SMALL_SUB_GROUP),
            "parameter_buffers": max(run.parameter_buffers, 16),
        }
    return run.with_values(**changes)


def is_stage_supported(stage: int, run: PlanSettings) -> bool:
    """Does a run with these parallel sizes, or with 4-bit weights, train at this stage?"""
    if run.quantization is not None:
        return stage <= 2
    return stage <= (1 if run.pipeline_parallel_size > 1 else 3)


def title_of(settings: PlanSettings, run: PlanSettings | None = None) -> str:
    """`ZeRO-3, optimizer and parameters on CPU`; with `run` also every other difference from it."""
    text = f"ZeRO-{settings.stage}" if settings.stage else "no ZeRO (stage 0)"
    optimizer, params = _DEVICE_NAMES[settings.optimizer_device], _DEVICE_NAMES[settings.param_device]
    if optimizer and optimizer == params:
        text += f", optimizer and parameters on {optimizer}"
    else:
        text += f", optimizer on {optimizer}" if optimizer else ""
        text += f", parameters on {params}" if params else ""
    if run is None:
        return text
    return text + "".join(f", {difference}" for difference in _describe_differences(settings, run))


def _describe_differences(settings: PlanSettings, run: PlanSettings) -> Iterator[str]:
    for name, size, current_size in (
        ("tensor", settings.tensor_parallel_size, run.tensor_parallel_size),
        ("pipeline", settings.pipeline_parallel_size, run.pipeline_parallel_size),
        ("sequence", settings.sequence_parallel_size, run.sequence_parallel_size),
    ):
        if size != current_size:
            yield f"{name} {size}"
    if settings.micro_batch != run.micro_batch:
        yield f"micro-batch {settings.rows}"
    if checkpointing_value(settings) != checkpointing_value(run):
        yield describe_checkpointing(settings)
