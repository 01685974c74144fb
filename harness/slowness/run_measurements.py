"""What a cause may look at: the run's medians and its plan, as plain numbers. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.plan.plan_settings import PlanSettings
from harness.plan.planner import Plan
from harness.run_records.run_files import finite_number
from harness.run_records.run_record import RunRecord
from harness.run_records.summary import median_or_none

_METRICS = (
    "seconds",
    "seconds_data",
    "seconds_forward",
    "seconds_backward",
    "seconds_optimizer",
    "seconds_pipeline",
    "seconds_communication",
    "seconds_io",
    "mfu",
    "hfu",
    "flops",
    "flops_hardware",
    "step_tokens",
    "step_positions",
    "nvme_read_bytes",
    "nvme_write_bytes",
    "tokens_per_second",
    "device_flops_per_second",
)


@dataclass(frozen=True, slots=True)
class RunMeasurements:
    """A run to be looked at. `measured`: medians of typical steps under the names of metrics.jsonl; `start`: the line
    `run`; `plan`: made again from the resolved spec, None where that cannot be read.
    """

    medians: Mapping[str, float]
    run_header: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None

    @property
    def step_seconds(self) -> float:
        """Seconds of the median step."""
        return self.medians.get("seconds", 0.0)

    def measured_share(self, name: str) -> float | None:
        """A part of the step, such as `data`, over the step; None where it was not measured."""
        part = self.medians.get(f"seconds_{name}")
        return part / self.step_seconds if part is not None and self.step_seconds > 0 else None

    def planned_share(self, *names: str) -> float | None:
        """Exposed seconds of parts over the step, as planned; None where no time is planned."""
        time = self.plan.time if self.plan else None
        if time is None or time.seconds <= 0:
            return None
        return sum(part.exposed for part in time.parts if part.name in names) / time.seconds

    @property
    def settings(self) -> PlanSettings | None:
        """What the plan looks at."""
        return self.plan.settings if self.plan else None

    def header_value(self, key: str) -> float | None:
        """A number of the line `run`."""
        return finite_number(self.run_header.get(key))


def measurements_of(record: RunRecord) -> RunMeasurements:
    """The medians of a record's typical steps, with its plan."""
    measured = {key: median_or_none(record.values(key)) for key in _METRICS}
    last = record.lines_of("run")[-1] if record.lines_of("run") else {}
    return RunMeasurements(
        {key: value for key, value in measured.items() if value is not None}, last, record.rebuilt_plan
    )


@dataclass(frozen=True, slots=True)
class SettingChange:
    """Keys of the spec to set (None removes one), in a few words. `effect`: what changes in what is trained."""

    description: str
    sets: Mapping[str, Any]
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A cause: what it is, what it costs (a share of the step, 0 to 1), the numbers that speak for it, settings to try,
    and what else helps. `planned` says that the share is the plan's, for want of a measurement.
    """

    name: str
    title: str
    share: float
    evidence: tuple[str, ...]
    settings: tuple[SettingChange, ...] = ()
    advice: tuple[str, ...] = ()
    is_planned: bool = False


def scale_micro_batch(s: PlanSettings, factor: float) -> dict[str, Any] | None:
    """Keys that make micro-batches `factor` times as large with the global batch as it is; None where that is not
    whole.
    """
    micro = s.micro_batch * factor
    whole = s.micro_batch * s.accumulation
    if micro < 1 or micro != int(micro) or whole % int(micro):
        return None
    return {
        "train.per_device_train_batch_size": int(micro),
        "train.global_batch_size": whole * s.data_parallel_size,
        "train.gradient_accumulation_steps": None,
    }


def enlarge_micro_batch(s: PlanSettings, description: str = "micro-batches") -> tuple[SettingChange, ...]:
    """Larger micro-batches, less accumulation: the same global batch."""
    found = []
    for factor in (2, 4):
        sets = scale_micro_batch(s, factor)
        if sets is not None:
            found.append(SettingChange(f"{description} of {sets['train.per_device_train_batch_size']}", sets))
    return tuple(found)


def format_percent(share: float) -> str:
    """`12%`."""
    return f"{100 * share:.0f}%"
