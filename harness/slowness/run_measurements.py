# SPDX-License-Identifier: Apache-2.0
"""The values that a cause reads: the run's medians and its plan, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.plan.planner import Plan
from harness.plan.settings.plan_settings import PlanSettings
from harness.run_records.run_record import RunRecord
from harness.run_records.summary import median_or_none
from harness.units import finite_number, format_seconds

_METRICS = tuple(
    """seconds seconds_data seconds_forward seconds_backward seconds_optimizer seconds_pipeline seconds_communication
    seconds_io mfu hfu flops flops_hardware step_tokens step_positions nvme_read_bytes nvme_write_bytes
    tokens_per_second device_flops_per_second""".split()
)


@dataclass(frozen=True, slots=True)
class RunMeasurements:
    """One run. `medians`: of typical steps, under the names of metrics.jsonl; `run_header`: the line `run`; `plan`:
    rebuilt from the resolved spec, None where that cannot be read; `gpu_lines`: the lines `gpu`.
    """

    medians: Mapping[str, float]
    run_header: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    gpu_lines: tuple[Mapping[str, Any], ...] = ()

    @property
    def step_seconds(self) -> float:
        """Seconds of the median step."""
        return self.medians.get("seconds", 0.0)

    def measured_share(self, name: str) -> float | None:
        """The share of a part of the step, such as `data`; None where it was not measured."""
        part = self.medians.get(f"seconds_{name}")
        return part / self.step_seconds if part is not None and self.step_seconds > 0 else None

    def describe_share(self, name: str) -> str:
        """The evidence for a measured part of the step."""
        part = self.medians[f"seconds_{name}"]
        share = format_percent(part / self.step_seconds)
        return f"`seconds_{name}` is {format_seconds(part)} of a step of {format_seconds(self.step_seconds)} ({share})"

    def planned_share(self, *names: str) -> float | None:
        """The planned share of the exposed seconds of some parts; None where no time is planned."""
        time = self.plan.time if self.plan else None
        if time is None or time.seconds <= 0:
            return None
        return sum(part.exposed for part in time.parts if part.name in names) / time.seconds

    @property
    def settings(self) -> PlanSettings | None:
        """The settings of the plan."""
        return self.plan.settings if self.plan else None

    def header_value(self, key: str) -> float | None:
        """A number of the line `run`."""
        return finite_number(self.run_header.get(key))


def measurements_of(record: RunRecord) -> RunMeasurements:
    """The medians of a record's typical steps, with its plan."""
    medians = {key: median_or_none(record.values(key)) for key in _METRICS}
    run_header = record.lines_of("run")[-1] if record.lines_of("run") else {}
    return RunMeasurements(
        {key: value for key, value in medians.items() if value is not None},
        run_header,
        record.rebuilt_plan,
        tuple(record.lines_of("gpu")),
    )


@dataclass(frozen=True, slots=True)
class SettingChange:
    """Keys of the spec to set (None removes one). `effect`: the change to the training itself, if any."""

    description: str
    sets: Mapping[str, Any]
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A cause: its cost as a share of the step (0 to 1), the evidence, settings to try, and other advice. `is_planned`:
    the share is the plan's, for want of a measurement.
    """

    name: str
    title: str
    share: float
    evidence: tuple[str, ...]
    settings: tuple[SettingChange, ...] = ()
    advice: tuple[str, ...] = ()
    is_planned: bool = False


def scale_micro_batch(settings: PlanSettings, factor: float) -> dict[str, Any] | None:
    """Keys that scale the micro-batch and keep the global batch; None where a size would not be whole."""
    micro = settings.micro_batch * factor
    rank_samples = settings.micro_batch * settings.accumulation
    if micro < 1 or micro != int(micro) or rank_samples % int(micro):
        return None
    return {
        "train.per_device_train_batch_size": int(micro),
        "train.global_batch_size": rank_samples * settings.data_parallel_size,
        "train.gradient_accumulation_steps": None,
    }


def enlarge_micro_batch(settings: PlanSettings, description: str = "micro-batches") -> tuple[SettingChange, ...]:
    """Micro-batches of twice and four times the size, with the same global batch."""
    changes = []
    for factor in (2, 4):
        sets = scale_micro_batch(settings, factor)
        if sets is not None:
            changes.append(SettingChange(f"{description} of {sets['train.per_device_train_batch_size']}", sets))
    return tuple(changes)


def format_percent(share: float) -> str:
    """`12%`."""
    return f"{100 * share:.0f}%"
