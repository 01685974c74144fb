# SPDX-License-Identifier: Apache-2.0
"""The pipeline's schedule played through against its closed forms. Needs nothing; milliseconds."""

from __future__ import annotations

import random

import pytest

from harness.plan.pipeline_schedule import bubble_fraction, micro_batches_in_flight, schedule_1f1b, simulate_schedule

PAIRS = [(p, m) for p in (1, 2, 3, 4, 6, 8) for m in (1, 2, 3, 4, 8, 12, 16, 24, 32)]


@pytest.mark.parametrize(("stages", "micro_batches"), PAIRS)
def test_equal_stages_take_what_the_closed_form_says(stages: int, micro_batches: int) -> None:
    seconds = simulate_schedule([1.0] * stages, [2.0] * stages, micro_batches)
    assert seconds == (micro_batches + stages - 1) * 3.0
    assert bubble_fraction("1f1b", stages, micro_batches) == pytest.approx(1 - micro_batches * 3.0 / seconds)


@pytest.mark.parametrize(("stages", "micro_batches"), PAIRS)
def test_a_stage_never_holds_more_than_it_may(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        held = most = 0
        for kind, _ in schedule_1f1b(stages, stage, micro_batches):
            held += 1 if kind == "forward" else -1
            most = max(most, held)
        assert held == 0
        assert most == micro_batches_in_flight(stages, stage, micro_batches)


@pytest.mark.parametrize(("stages", "micro_batches"), [(p, m) for p, m in PAIRS if p > 1])
def test_every_message_waits(stages: int, micro_batches: int) -> None:
    """The first forward and the last backward cross every border; so the latency counts at least so often."""
    extra = simulate_schedule([1.0] * stages, [1.0] * stages, micro_batches, 0.01) - 2 * (micro_batches + stages - 1)
    assert 2 * (stages - 1) * 0.01 <= extra + 1e-9 <= 2 * (micro_batches + stages - 2) * 0.01 + 2e-9


def test_one_micro_batch_at_a_time_wastes_most() -> None:
    assert bubble_fraction("naive", 4, 8) == 0.75
    assert bubble_fraction("1f1b", 4, 8) == pytest.approx(0.273, abs=0.001)
    assert bubble_fraction("1f1b", 8, 32) == pytest.approx(0.179, abs=0.001)


def test_uneven_stages_stay_below_the_bound() -> None:
    draw = random.Random(0)  # noqa: S311 - the same draws each time
    for _ in range(50):
        stages, micro = draw.randint(1, 6), draw.randint(1, 12)
        both = [draw.uniform(0.5, 1.5) for _ in range(stages)]
        seconds = simulate_schedule(both, both, micro)
        assert seconds <= sum(2 * t for t in both) + (micro - 1) * 2 * max(both) + 1e-9
        assert seconds >= micro * 2 * max(both) - 1e-9
