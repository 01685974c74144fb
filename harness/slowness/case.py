"""What a cause may look at: the run's medians and its plan, as plain numbers. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.plan.plan import Plan
from harness.plan.settings import Settings
from harness.records.files import number
from harness.records.record import Record
from harness.records.summary import middle

_MEASURED = (
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
class Case:
    """A run to be looked at. `measured`: medians of typical steps under the names of metrics.jsonl; `start`: the line
    `run`; `plan`: made again from the resolved spec, None where that cannot be read.
    """

    measured: Mapping[str, float]
    start: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None

    @property
    def step(self) -> float:
        """Seconds of the median step."""
        return self.measured.get("seconds", 0.0)

    def share(self, name: str) -> float | None:
        """A part of the step, such as `data`, over the step; None where it was not measured."""
        part = self.measured.get(f"seconds_{name}")
        return part / self.step if part is not None and self.step > 0 else None

    def planned(self, *names: str) -> float | None:
        """Exposed seconds of parts over the step, as planned; None where no time is planned."""
        time = self.plan.time if self.plan else None
        if time is None or time.seconds <= 0:
            return None
        return sum(part.exposed for part in time.parts if part.name in names) / time.seconds

    @property
    def settings(self) -> Settings | None:
        """What the plan looks at."""
        return self.plan.settings if self.plan else None

    def told(self, key: str) -> float | None:
        """A number of the line `run`."""
        return number(self.start.get(key))


def case_of(record: Record) -> Case:
    """The medians of a record's typical steps, with its plan."""
    measured = {key: middle(record.values(key)) for key in _MEASURED}
    last = record.of("run")[-1] if record.of("run") else {}
    return Case({key: value for key, value in measured.items() if value is not None}, last, record.planned)


@dataclass(frozen=True, slots=True)
class Setting:
    """Keys of the spec to set (None removes one), in a few words. `effect`: what changes in what is trained."""

    words: str
    sets: Mapping[str, Any]
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Slow:
    """A cause: what it is, what it costs (a share of the step, 0 to 1), the numbers that speak for it, settings to try,
    and what else helps. `planned` says that the share is the plan's, for want of a measurement.
    """

    name: str
    title: str
    share: float
    evidence: tuple[str, ...]
    settings: tuple[Setting, ...] = ()
    advice: tuple[str, ...] = ()
    planned: bool = False


def batches(s: Settings, factor: float) -> dict[str, Any] | None:
    """Keys that make micro-batches `factor` times as large with the global batch as it is; None where that is not
    whole.
    """
    micro = s.micro_batch * factor
    whole = s.micro_batch * s.accumulation
    if micro < 1 or micro != int(micro) or whole % int(micro):
        return None
    return {
        "train.per_device_train_batch_size": int(micro),
        "train.global_batch_size": whole * s.data,
        "train.gradient_accumulation_steps": None,
    }


def larger(s: Settings, words: str = "micro-batches") -> tuple[Setting, ...]:
    """Larger micro-batches, less accumulation: the same global batch."""
    found = []
    for factor in (2, 4):
        sets = batches(s, factor)
        if sets is not None:
            found.append(Setting(f"{words} of {sets['train.per_device_train_batch_size']}", sets))
    return tuple(found)


def percent(share: float) -> str:
    """`12%`."""
    return f"{100 * share:.0f}%"
