"""All causes of one run, the costliest first, each with what the plan predicts of its settings. Formats nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.plan.plan import Plan
from harness.records.files import json_of
from harness.records.record import Record
from harness.slowness.case import Case, Setting, Slow, case_of
from harness.slowness.causes import LOOKS
from harness.slowness.trial import Prediction, predict

_MOST_SETTINGS = 3
_NOTHING = 0.005
"""Share of a planned step below which two plans are alike."""
Predict = Callable[[Plan, Setting], Prediction]


@dataclass(frozen=True, slots=True)
class Told:
    """A cause and its settings with their predictions: what the gates refuse, what does not fit and what the plan
    expects to be slower is left out.
    """

    slow: Slow
    settings: tuple[tuple[Setting, Prediction | None], ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`step`: seconds of the median step, 0 where none was recorded. `causes` is empty where nothing stands out."""

    case: Case
    causes: tuple[Told, ...]

    @property
    def step(self) -> float:
        """Seconds of the median step."""
        return self.case.step


def diagnose(record: Record) -> Diagnosis:
    """Ask every cause. Raises nothing."""
    case = case_of(record)
    if not case.step:
        return Diagnosis(case, ())
    folder = json_of(record.folder / "launch.json").get("folder")
    base = Path(folder) if isinstance(folder, str) else record.folder
    gpu = "cpu" if record.on_cpu else None
    return diagnose_case(case, lambda plan, setting: predict(plan, setting.sets, base, gpu))


def diagnose_case(case: Case, ask: Predict) -> Diagnosis:
    """The same for numbers that come from elsewhere."""
    found = [slow for slow in (look(case) for look in LOOKS) if slow is not None]
    found.sort(key=lambda slow: -slow.share)
    return Diagnosis(case, tuple(Told(slow, _tried(case.plan, slow, ask)) for slow in found))


def _tried(plan: Plan | None, slow: Slow, ask: Predict) -> tuple[tuple[Setting, Prediction | None], ...]:
    if plan is None:
        return tuple((setting, None) for setting in slow.settings[:_MOST_SETTINGS])
    kept: list[tuple[Setting, Prediction]] = []
    for setting in slow.settings:
        prediction = ask(plan, setting)
        after = prediction.after
        if prediction.refused is not None or after is None or (after.fit.fits is False and plan.fit.fits is not False):
            continue
        if prediction.gain is not None and prediction.gain < -_NOTHING:
            continue
        kept.append((setting, prediction))
    kept.sort(key=lambda pair: -(pair[1].gain or 0.0))
    faster = [pair for pair in kept if (pair[1].gain or 0.0) > _NOTHING]
    return tuple((faster or kept)[:_MOST_SETTINGS])
