# SPDX-License-Identifier: Apache-2.0
"""The fastest trial, and the failures of trials as a launch reports them. Needs nothing, no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.run_records.run_record import read_run_record
from harness.tuning.trials import (
    Trial,
    is_far_behind,
    measurements_of,
    num_warmup_steps,
    rank_trials,
    state_of_launch,
    step_seconds,
)
from tests.support.tune_reports import candidate, trial


def test_the_fastest_is_the_one_with_the_shortest_median_step() -> None:
    trials = [trial(1.0, 1.1, 1.0), trial(0.5, 0.5, 9.0, sets=1), trial(0.6, 0.6, 0.6, sets=2)]
    result = rank_trials(trials)
    assert result.best is trials[1]
    assert result.gain == pytest.approx(0.5)
    assert result.speedup == pytest.approx(2.0)


def test_faster_means_by_more_than_the_steps_scatter() -> None:
    spec = trial(1.0, 1.2, 0.8, 1.1, 0.9)
    assert not rank_trials([spec, trial(0.9, 0.9, 1.1, 0.9, 1.0, sets=1)]).is_faster
    assert rank_trials([spec, trial(0.9, 1.0, 0.7, 0.9, 0.8, sets=1)]).is_faster
    assert not rank_trials([trial(1.0, 1.0, 1.0), trial(0.995, 0.995, 0.995, sets=1)]).is_faster


def test_the_better_of_two_runs_of_the_spec_counts() -> None:
    slow, other, again = trial(1.0, 1.0, 1.0), trial(0.5, 0.5, 0.5, sets=1), trial(0.5, 0.5, 0.5)
    assert rank_trials([slow, other]).is_faster
    result = rank_trials([slow, other, again])
    assert not result.is_faster
    assert result.baseline is again
    assert not result.best.candidate.changes or result.gain == pytest.approx(0.0)


def test_trials_that_did_not_end_well_are_not_ranked() -> None:
    spec = trial(1.0, 1.0, 1.0)
    others = [trial(0.1, 0.1, sets=n, state=s) for n, s in enumerate(("dropped", "failed", "out of memory"), 1)]
    result = rank_trials([spec, *others])
    assert result.best is spec
    assert not result.is_faster


def test_where_the_spec_itself_fails_what_runs_is_better() -> None:
    result = rank_trials([trial(state="out of memory"), trial(1.0, 1.0, sets=1)])
    assert result.is_faster
    assert result.gain is None
    assert rank_trials([Trial(candidate()), Trial(candidate(1))]).best is None
    assert rank_trials([]).best is None


def test_only_what_is_far_behind_from_the_start_is_dropped() -> None:
    best = trial(1.0, 2.0, 1.0, 1.0)
    assert is_far_behind((1.6, 3.2, 1.6), best)
    assert not is_far_behind((1.6, 3.2), best)
    assert not is_far_behind((9.0, 2.1, 9.0), best), "step by step: its second step was as fast"
    assert not is_far_behind((9.0, 9.0, 9.0), None)


def test_the_first_steps_are_left_out() -> None:
    assert [num_warmup_steps(n) for n in (5, 8, 12, 100)] == [1, 2, 3, 3]
    lines = [{"type": "step", "step": n, "seconds": float(n)} for n in range(1, 6)]
    assert step_seconds([*lines, {"type": "run"}], 3) == (4.0, 5.0)


def test_a_record_gives_speed_and_the_peaks_of_all_ranks(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"type": "step", "step": n, "seconds": s, "step_tokens": 100, "memory_host_bytes": 10 * n}
        for n, s in enumerate((9.0, 2.0, 2.0, 4.0), 1)
    ]
    lines.append({"type": "ranks", "step": 4, "memory_gpu_peak_bytes": [7, 9]})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    result = measurements_of(read_run_record(tmp_path), 1)
    assert result == {"seconds": (2.0, 2.0, 4.0), "tokens_per_second": 50.0, "gpu_peak": 9, "host_peak": 40}


@pytest.mark.parametrize(
    ("told", "state", "words"),
    [
        ({"state": "completed"}, "measured", ""),
        ({"state": "failed", "diagnosis": {"cause": "LG001", "title": "the GPU ran out", "message": "2 GiB\n more"}},
         "out of memory", "LG001: the GPU ran out: 2 GiB more"),
        ({"state": "failed", "diagnosis": {"cause": "LG003", "title": "killed"}}, "failed", "LG003: killed"),
        ({"state": "failed", "reason": "rank 1 is gone", "diagnosis": None}, "failed", "rank 1 is gone"),
        ({}, "failed", ""),
    ],
)  # fmt: skip
def test_what_a_launch_says_becomes_state_and_cause(told: dict[str, Any], state: str, words: str) -> None:
    assert state_of_launch(told) == (state, words)
