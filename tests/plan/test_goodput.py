# SPDX-License-Identifier: Apache-2.0
"""Checkpoint intervals, hours and money, against worked examples. Needs nothing; milliseconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.facts.devices import find_device
from harness.plan.time.goodput import (
    checkpoint_bytes,
    checkpoint_cost,
    optimal_interval_daly,
    optimal_interval_young,
)
from harness.plan.time.rates import Rates
from tests.support.plan_inputs import plan_of, settings

HOURS = 3600
FAILURE = 50_700 * HOURS


@pytest.mark.parametrize(
    ("cost", "gpus", "hours"), [(60, 8, 14.5), (60, 64, 5.1), (60, 512, 1.8), (60, 4096, 0.65), (600, 512, 5.7)]
)
def test_young(cost: float, gpus: int, hours: float) -> None:
    assert optimal_interval_young(cost, FAILURE / gpus) / HOURS == pytest.approx(hours, rel=0.03)


def test_daly_corrects_young_and_gives_up_when_saving_takes_too_long() -> None:
    assert optimal_interval_daly(60, FAILURE / 512) == pytest.approx(
        optimal_interval_young(60, FAILURE / 512) - 60, rel=0.01
    )
    assert optimal_interval_daly(100, 49) == 49


def test_the_best_interval_loses_least() -> None:
    cost, between = 300.0, 40_000.0

    def lost(interval: float) -> float:
        return cost / interval + interval / 2 / between

    best = optimal_interval_young(cost, between)
    assert lost(best) < min(lost(best * 0.9), lost(best * 1.1))


def test_a_checkpoint_of_70b_is_most_of_a_terabyte() -> None:
    assert checkpoint_bytes(settings(), 70_553_706_496) == 12 * 70_553_706_496
    assert checkpoint_bytes(settings(zero={"stage": 2}), 70_553_706_496) == 14 * 70_553_706_496
    cost = checkpoint_cost(settings(), 70_553_706_496, Rates())
    assert cost.seconds == pytest.approx(169.4, abs=0.5)
    assert cost.failure_seconds == FAILURE / 8
    assert 0 < cost.lost < 0.01


def test_all_hosts_write_to_one_file_system() -> None:
    """405 B on 2,048 hosts: 476 ms at 5 GB/s a host were 10 TB/s; nobody has published more than 2."""
    many = settings(ranks=16384)
    default = checkpoint_cost(many, 405_853_388_800, Rates())
    assert default.seconds == pytest.approx(12 * 405_853_388_800 / 2e12)
    shared = checkpoint_cost(many, 405_853_388_800, Rates(checkpoint_shared=250e9))
    assert shared.seconds == pytest.approx(19.5, abs=0.1)
    assert shared.interval > default.interval
    few = settings(ranks=16)
    assert checkpoint_cost(few, 8_030_261_248, Rates()).seconds == pytest.approx(12 * 8_030_261_248 / 10e9)


def test_more_ranks_fail_more_often_and_want_shorter_intervals() -> None:
    few = checkpoint_cost(settings(), 8_030_261_248, Rates())
    many = checkpoint_cost(settings(ranks=1024), 8_030_261_248, Rates())
    assert many.interval < few.interval
    assert many.lost > few.lost


def test_the_own_interval_has_its_own_loss() -> None:
    """A minute of writing every nine minutes of work is a tenth; a failure loses half of the nine."""
    cost = checkpoint_cost(settings(ranks=1024), 70_553_706_496, Rates())
    own = cost.at_interval(90, 6.0)
    assert own.save_share == pytest.approx(cost.seconds / (540 + cost.seconds))
    assert own.failure_loses == 270
    assert own.lost > cost.lost
    best = cost.at_interval(1, cost.interval)
    assert best.lost == pytest.approx(cost.lost, rel=0.02)


def test_an_asynchronous_save_waits_for_its_copy_and_for_the_one_before() -> None:
    device, checkpoint = find_device("H100-80GB"), {"save_steps": 10, "async_save": True}
    cost = checkpoint_cost(settings(checkpoint=checkpoint), 70_553_706_496, Rates(), device=device)
    assert cost.seconds == pytest.approx(169.4, abs=0.5)
    assert cost.waits < 5
    assert cost.at_interval(10, 60.0).save_share < 0.01
    assert cost.at_interval(1, 60.0).save_share == pytest.approx((cost.seconds - 60) / cost.seconds)


def test_hours_and_money_have_the_loss_of_the_own_interval() -> None:
    rare, often = (plan_of("llama-3.1-8b", checkpoint={"save_steps": steps}) for steps in (1000, 1))
    assert often.lost_share(often.time) > 0.3 > rare.lost_share(rare.time)
    hours = [replace(plan, tokens=1e9).cost for plan in (rare, often)]
    assert hours[0] is not None
    assert hours[1] is not None
    assert hours[1].hours > 1.4 * hours[0].hours
