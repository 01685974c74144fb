"""All causes of one run, the costliest first, each with what the plan predicts of its settings. Formats nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.plan.planner import Plan
from harness.run_records.run_files import json_of
from harness.run_records.run_record import RunRecord
from harness.slowness.causes import DETECTORS
from harness.slowness.plan_prediction import PlanPrediction, predict_plan
from harness.slowness.run_measurements import RunMeasurements, SettingChange, Slowdown, measurements_of

_MAX_SETTINGS = 3
_NEGLIGIBLE_GAIN = 0.005
"""Share of a planned step below which two plans are alike."""
Predictor = Callable[[Plan, SettingChange], PlanPrediction]


@dataclass(frozen=True, slots=True)
class SlowdownReport:
    """A cause and its settings with their predictions: what the gates refuse, what does not fit and what the plan
    expects to be slower is left out.
    """

    slowdown: Slowdown
    settings: tuple[tuple[SettingChange, PlanPrediction | None], ...]


@dataclass(frozen=True, slots=True)
class SlownessReport:
    """`step`: seconds of the median step, 0 where none was recorded. `causes` is empty where nothing stands out."""

    measurements: RunMeasurements
    slowdowns: tuple[SlowdownReport, ...]

    @property
    def step_seconds(self) -> float:
        """Seconds of the median step."""
        return self.measurements.step_seconds


def diagnose_slowness(record: RunRecord) -> SlownessReport:
    """Ask every cause. Raises nothing."""
    case = measurements_of(record)
    if not case.step_seconds:
        return SlownessReport(case, ())
    folder = json_of(record.folder / "launch.json").get("folder")
    base = Path(folder) if isinstance(folder, str) else record.folder
    gpu = "cpu" if record.on_cpu else None
    return diagnose_measurements(case, lambda plan, setting: predict_plan(plan, setting.sets, base, gpu))


def diagnose_measurements(case: RunMeasurements, ask: Predictor) -> SlownessReport:
    """The same for numbers that come from elsewhere."""
    found = [slow for slow in (look(case) for look in DETECTORS) if slow is not None]
    found.sort(key=lambda slow: -slow.share)
    return SlownessReport(case, tuple(SlowdownReport(slow, _predict_settings(case.plan, slow, ask)) for slow in found))


def _predict_settings(
    plan: Plan | None, slow: Slowdown, ask: Predictor
) -> tuple[tuple[SettingChange, PlanPrediction | None], ...]:
    if plan is None:
        return tuple((setting, None) for setting in slow.settings[:_MAX_SETTINGS])
    kept: list[tuple[SettingChange, PlanPrediction]] = []
    for setting in slow.settings:
        prediction = ask(plan, setting)
        after = prediction.after
        if (
            prediction.blocking_finding is not None
            or after is None
            or (after.fit.fits is False and plan.fit.fits is not False)
        ):
            continue
        if prediction.gain is not None and prediction.gain < -_NEGLIGIBLE_GAIN:
            continue
        kept.append((setting, prediction))
    kept.sort(key=lambda pair: -(pair[1].gain or 0.0))
    faster = [pair for pair in kept if (pair[1].gain or 0.0) > _NEGLIGIBLE_GAIN]
    return tuple((faster or kept)[:_MAX_SETTINGS])
