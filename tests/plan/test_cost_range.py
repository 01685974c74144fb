# SPDX-License-Identifier: Apache-2.0
"""Hours and money of a run: from the range of a step's time, with what checkpoints and failures take."""

from __future__ import annotations

import pytest

from harness.plan.time.cost_range import cost_range
from harness.plan.time.step_time import StepTime
from tests.support.plan_inputs import plan_of, settings

HOUR = StepTime(3600.0, "compute", (), 0.0, 1_000_000, 0.4, 1800.0, 7200.0)
"""A million tokens an hour, half an hour on a fast and two hours on a slow machine."""


def test_hours_and_money_on_eight_gpus() -> None:
    cost = cost_range(3e6, HOUR, settings(), 0.0, 2.0)
    assert (cost.hours, cost.hours_range) == (3.0, (1.5, 6.0))
    assert (cost.gpu_hours, cost.money, cost.money_range) == (24.0, 48.0, (24.0, 96.0))


def test_lost_time_lengthens_the_run_and_no_price_gives_no_money() -> None:
    cost = cost_range(3e6, HOUR, settings(), 0.5, None)
    assert cost.hours == pytest.approx(6.0)
    assert (cost.money, cost.money_range) == (None, None)


def test_a_plan_without_tokens_has_no_cost() -> None:
    assert plan_of("llama-3.1-8b").cost is None
