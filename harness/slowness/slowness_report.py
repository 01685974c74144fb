# SPDX-License-Identifier: Apache-2.0
"""All causes of one run, the costliest first, each with the plan's predictions for its settings. Formats nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.plan.planner import Plan
from harness.run_records.run_files import json_of
from harness.run_records.run_record import RunRecord
from harness.slowness import overheads, waits
from harness.slowness.plan_prediction import PlanPrediction, predict_plan
from harness.slowness.run_measurements import RunMeasurements, SettingChange, Slowdown, measurements_of

_MAX_SETTINGS = 3
_NEGLIGIBLE_GAIN = 0.005
"""Share of a planned step below which two plans count as equal."""
_DETECTORS: tuple[Callable[[RunMeasurements], Slowdown | None], ...] = (
    waits.detect_data_wait,
    waits.detect_exposed_communication,
    waits.detect_cpu_optimizer,
    waits.detect_pcie_copies,
    waits.detect_nvme_swap,
    overheads.detect_pipeline_bubble,
    overheads.detect_recomputation,
    overheads.detect_small_micro_batch,
    overheads.detect_padding,
    waits.detect_unhealthy_gpu,
)
"""Each returns None where its cause does not apply."""
Predictor = Callable[[Plan, SettingChange], PlanPrediction]


@dataclass(frozen=True, slots=True)
class SlowdownReport:
    """A cause and its settings with their predictions, without settings that the gates refuse, that do not fit, or
    that the plan predicts to be slower.
    """

    slowdown: Slowdown
    settings: tuple[tuple[SettingChange, PlanPrediction | None], ...]


@dataclass(frozen=True, slots=True)
class SlownessReport:
    """The slowdowns of a run; empty where no cause applies."""

    measurements: RunMeasurements
    slowdowns: tuple[SlowdownReport, ...]

    @property
    def step_seconds(self) -> float:
        """Seconds of the median step, 0 where no step was recorded."""
        return self.measurements.step_seconds


def diagnose_slowness(record: RunRecord) -> SlownessReport:
    """Detect every cause. Raises nothing."""
    measurements = measurements_of(record)
    if not measurements.step_seconds:
        return SlownessReport(measurements, ())
    folder = json_of(record.folder / "launch.json").get("folder")
    base_dir = Path(folder) if isinstance(folder, str) else record.folder
    gpu = "cpu" if record.on_cpu else None
    return diagnose_measurements(measurements, lambda plan, setting: predict_plan(plan, setting.sets, base_dir, gpu))


def diagnose_measurements(measurements: RunMeasurements, predict: Predictor) -> SlownessReport:
    """Detect every cause by measurements alone."""
    slowdowns = [slowdown for slowdown in (detect(measurements) for detect in _DETECTORS) if slowdown is not None]
    slowdowns.sort(key=lambda slowdown: -slowdown.share)
    return SlownessReport(
        measurements,
        tuple(
            SlowdownReport(slowdown, _predict_settings(measurements.plan, slowdown, predict)) for slowdown in slowdowns
        ),
    )


def _predict_settings(
    plan: Plan | None, slowdown: Slowdown, predict: Predictor
) -> tuple[tuple[SettingChange, PlanPrediction | None], ...]:
    if plan is None:
        return tuple((setting, None) for setting in slowdown.settings[:_MAX_SETTINGS])
    predictions: list[tuple[SettingChange, PlanPrediction]] = []
    for setting in slowdown.settings:
        prediction = predict(plan, setting)
        after = prediction.after
        if (
            prediction.blocking_finding is not None
            or after is None
            or (after.fit.fits is False and plan.fit.fits is not False)
        ):
            continue
        if prediction.gain is not None and prediction.gain < -_NEGLIGIBLE_GAIN:
            continue
        predictions.append((setting, prediction))
    predictions.sort(key=lambda pair: -(pair[1].gain or 0.0))
    faster = [pair for pair in predictions if (pair[1].gain or 0.0) > _NEGLIGIBLE_GAIN]
    return tuple((faster or predictions)[:_MAX_SETTINGS])
