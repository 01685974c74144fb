# SPDX-License-Identifier: Apache-2.0
"""Trials made up for the tests beside this. No tests here."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from harness.check.check_file import check_file
from harness.plan.planner import make_plan
from harness.plan.search.alternatives import Alternative, evaluate_alternative
from harness.tuning.candidates import Candidate
from harness.tuning.trials import Trial, TrialState, rank_trials
from harness.tuning.tune_report import TuneReport

DEMO = Path(__file__).parents[2] / "ds_configs" / "demo.yaml"


@cache
def a_rung() -> Alternative:
    run = check_file(str(DEMO)).run
    assert run is not None
    plan = make_plan(run, Path.cwd())
    assert plan.model is not None
    assert plan.settings is not None
    return evaluate_alternative(plan.model, plan.settings, plan.settings, plan.device, plan.capacity, plan.rates)


def candidate(number: int = 0, sets: dict[Any, Any] | None = None) -> Candidate:
    if not number:
        return Candidate("the spec as it is", a_rung())
    micro = ("train", "per_device_train_batch_size")
    return Candidate(f"micro-batch {2**number}", a_rung(), sets or {micro: 2**number})


def trial(*seconds: float, sets: int = 0, state: TrialState = "measured", keys: dict[Any, Any] | None = None) -> Trial:
    speed, peak = (1000.0, 1 << 28) if seconds else (None, None)
    return Trial(candidate(sets, keys), state, seconds, tokens_per_second=speed, host_peak=peak)


def evidence(*trials: Trial, **more: Any) -> TuneReport:
    known: dict[str, Any] = {
        "spec": "spec.yaml",
        "overrides": (),
        "date": "2026-11-22 10:00",
        "machine": "the CPU",
        "versions": "deepspeed 0.19.8, torch 2.13.0",
        "ranks": 2,
        "global_batch": 16,
        "steps": 12,
        "skip": 3,
        "searched": 72,
    }
    return TuneReport(**{**known, "trials": trials, "ranking": rank_trials(trials), **more})
