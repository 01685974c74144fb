# SPDX-License-Identifier: Apache-2.0
"""Measurements of short runs, the fastest of them, and its gain over the spec as it is.

Steps are compared one with one: step n of every trial computes the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any, Literal

from harness.run_records.run_record import RunRecord
from harness.tuning.candidates import Candidate
from harness.units import finite_number

TrialState = Literal["measured", "dropped", "out of memory", "failed", "timed out", "not tried"]
WARMUP_STEPS = 3
"""Steps without a measurement at the start: allocators, caches and ZeRO-3's trace warm up."""
EARLY_STOP_RATIO, EARLY_STOP_STEPS = 1.5, 3
"""A trial ends early when each of so many measured steps took this many times as long as the best trial's."""
MIN_GAIN = 0.01
_OUT_OF_MEMORY_CAUSES = ("LG001", "LG002", "LG004")
"""Causes of `harness.diagnosis`: the device's, the host's, an allocation that the host refused."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate's run: seconds of each measured step, tokens/s over all ranks, peaks in bytes of a rank (the
    device's, rank 0's process), seconds of the whole run, the cause of a missing measurement, the run directory.
    """

    candidate: Candidate
    state: TrialState = "not tried"
    seconds: tuple[float, ...] = ()
    tokens_per_second: float | None = None
    gpu_peak: int | None = None
    host_peak: int | None = None
    wall_seconds: float = 0.0
    cause: str = ""
    run_dir: str = ""

    @property
    def median_step_seconds(self) -> float | None:
        """Median seconds a step; None with too few steps."""
        return median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float | None:
        """Between the quartiles, as a share of the median."""
        if len(self.seconds) < 2 or not self.median_step_seconds:
            return None
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median_step_seconds


@dataclass(frozen=True, slots=True)
class Ranking:
    """The outcome. `best` is None without a measurement; `gain`: share of a step that it saves over the spec as it is;
    `is_faster`: by more than the scatter of the steps.
    """

    best: Trial | None
    baseline: Trial | None
    gain: float | None = None
    is_faster: bool = False

    @property
    def speedup(self) -> float | None:
        """Speed of the best over the spec's."""
        return None if self.gain is None or self.gain >= 1 else 1 / (1 - self.gain)


def rank_trials(trials: Sequence[Trial]) -> Ranking:
    """The fastest of the trials that ran to their end. The first trial is the spec as it is; where it ran again at the
    end, since a machine is not always as fast, the better of its runs counts.

    Faster: three of four steps took less than the spec's same steps, by more than a hundredth. Where the spec itself
    has no measurement, any measured trial is better.
    """
    if not trials:
        return Ranking(None, None)
    best, first = fastest_trial(trials), trials[0]
    spec = fastest_trial(trial for trial in trials if not trial.candidate.changes) or first
    if best is None or not best.candidate.changes:
        return Ranking(best, spec, None if best is None else 0.0)
    if spec.state != "measured":
        return Ranking(best, spec, is_faster=spec.state != "not tried")
    ratios = step_ratios(best.seconds, spec.seconds)
    if len(ratios) < 2:
        return Ranking(best, spec)
    _, _, high = quantiles(ratios, n=4, method="inclusive")
    return Ranking(best, spec, 1 - median(ratios), is_faster=high < 1 - MIN_GAIN)


def fastest_trial(trials: Iterable[Trial]) -> Trial | None:
    """The one with the shortest median step."""
    measured = [
        (trial.median_step_seconds, index, trial)
        for index, trial in enumerate(trials)
        if trial.state == "measured" and trial.median_step_seconds is not None
    ]
    return min(measured)[2] if measured else None


def step_ratios(seconds: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Step by step, the seconds of one trial over those of the reference."""
    return [
        step_seconds / reference_seconds
        for step_seconds, reference_seconds in zip(seconds, reference, strict=False)
        if reference_seconds > 0
    ]


def is_far_behind(seconds: Sequence[float], best: Trial | None) -> bool:
    """Is it clear after a few steps that this trial will not be the fastest?"""
    ratios = step_ratios(seconds, best.seconds) if best is not None else []
    return len(ratios) >= EARLY_STOP_STEPS and min(ratios) > EARLY_STOP_RATIO


def num_warmup_steps(steps: int) -> int:
    """Steps of a trial without a measurement."""
    return min(WARMUP_STEPS, steps // 3)


def step_seconds(lines: Iterable[Any], skip: int) -> tuple[float, ...]:
    """Seconds of the measured steps, from lines of metrics.jsonl."""
    steps = [line for line in lines if line.get("type") == "step" and (finite_number(line.get("step")) or 0) > skip]
    return tuple(value for line in steps if (value := finite_number(line.get("seconds"))) is not None)


def measurements_of(record: RunRecord, skip: int) -> dict[str, Any]:
    """The measurements of a run's record, as fields of `Trial`."""
    steps = [line for line in record.lines_of("step") if (finite_number(line.get("step")) or 0) > skip]
    seconds = step_seconds(steps, skip)
    tokens = [finite_number(line.get("step_tokens")) or 0.0 for line in steps]
    return {
        "seconds": seconds,
        "tokens_per_second": fmean(tokens) / median(seconds)
        if seconds and median(seconds) > 0 and all(tokens)
        else None,
        "gpu_peak": _max_over_ranks(record, "memory_gpu_peak_bytes"),
        "host_peak": _max_over_ranks(record, "memory_host_peak_bytes", "memory_host_bytes"),
    }


def _max_over_ranks(record: RunRecord, *keys: str) -> int | None:
    """The highest value of any rank: rank 0's at every step, all ranks' at the steps that compare them."""
    values = [finite_number(line.get(key)) for line in record.lines_of("step") for key in keys]
    for line in record.lines_of("ranks"):
        rank_values = line.get(keys[0])
        values += map(finite_number, rank_values) if isinstance(rank_values, list) else ()
    return int(max((value for value in values if value), default=0)) or None


def state_of_launch(launch_result: dict[str, Any]) -> tuple[TrialState, str]:
    """State and cause, from what `harness launch --format json` printed."""
    if launch_result.get("state") == "completed":
        return "measured", ""
    diagnosis = launch_result.get("diagnosis")
    diagnosis = diagnosis if isinstance(diagnosis, dict) else {}
    state: TrialState = "out of memory" if diagnosis.get("cause") in _OUT_OF_MEMORY_CAUSES else "failed"
    title, message = str(diagnosis.get("title") or ""), str(diagnosis.get("message") or "")
    cause = ": ".join(part for part in (title, message) if part) or str(launch_result.get("reason") or "")
    name = f"{diagnosis['cause']}: " if diagnosis.get("cause") else ""
    return state, name + " ".join(cause.split())
