# SPDX-License-Identifier: Apache-2.0
"""Seconds of the clock for the whole run, next to the plan's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from harness.plan.simulation.clock_rates import ClockRates, clock_rates
from harness.plan.simulation.layer_extrapolation import extrapolate_layers
from harness.plan.simulation.simulated_time import (
    GROUPS,
    compare_time,
    planned_group,
    simulated_time,
    with_simulated_overlap,
)
from tests.support.plan_inputs import offload, plan_of
from tests.support.simulated_clock import result_of, segment

PLAN = plan_of("llama-3.1-8b", zero=offload("cpu"))


def test_the_first_micro_batch_stands_for_all_but_the_last() -> None:
    time = simulated_time(result_of(), 4)
    assert time is not None
    assert time.seconds == 3 * 6.5 + 8 + 10
    assert time.phases == {"forward": 3 * 2.5 + 3, "backward": 3 * 4 + 5, "step": 10}
    assert (time.kinds["host to device"].busy, time.kinds["host to device"].exposed) == (4, 2.5)
    assert time.kinds["reduce"].exposed == 1
    assert time.host == pytest.approx(time.seconds - sum(kind.exposed for kind in time.kinds.values()))
    assert time.group("host").busy == time.host == pytest.approx(1.0)


def test_a_single_micro_batch_is_not_repeated() -> None:
    single = {"clock": {"segments": result_of()["clock"]["segments"][2:]}}
    time = simulated_time(single, 1)
    assert time is not None
    assert time.seconds == 18


def test_no_clock_no_time() -> None:
    for result in ({}, {"clock": None}):
        assert simulated_time(result, 2) is None
        assert compare_time(PLAN, result) is None


def test_the_plan_takes_the_overlap_of_the_simulation() -> None:
    assert PLAN.time is not None
    simulated = simulated_time(result_of(), 4)
    assert simulated is not None
    changed = with_simulated_overlap(PLAN.time, simulated)
    before, after = ({part.name: part for part in time.parts} for time in (PLAN.time, changed))
    copies = planned_group(PLAN.time, "copies").busy
    assert after["PCIe"].exposed == pytest.approx(before["PCIe"].seconds * min(1, 2.5 / copies))
    assert after["collectives"].exposed == pytest.approx(before["collectives"].seconds / 2)
    assert after["compute"] == before["compute"]
    assert changed.seconds == pytest.approx(sum(part.exposed for part in changed.parts))
    assert changed.seconds * changed.mfu == pytest.approx(PLAN.time.seconds * PLAN.time.mfu)


def test_the_plan_s_disk_is_what_the_cpu_does_not_hide() -> None:
    """Its seconds are those beyond the CPU's step, so that the simulated ones that nothing hides are compared."""
    time = plan_of("llama-3.1-8b", zero=offload("nvme")).time
    assert time is not None
    planned = planned_group(time, "disk").busy
    result = {"clock": {"segments": [segment("step", 9.0, disk_read=(100 * planned, 0.5 * planned))]}}
    simulated = simulated_time(result, 1)
    assert simulated is not None
    changed = with_simulated_overlap(time, simulated)
    assert planned_group(changed, "disk").exposed == pytest.approx(0.5 * planned)


def test_every_part_of_a_plan_has_a_group() -> None:
    known = {name for parts, _ in GROUPS.values() for name in parts}
    for zero in ({"stage": 1}, offload("cpu"), offload("nvme", "nvme"), {"stage": 2}):
        time = plan_of("llama-3.1-8b", zero=zero).time
        assert time is not None
        assert {part.name for part in time.parts} <= known


def test_layers_are_extrapolated_by_a_straight_line() -> None:
    empty: dict[str, Any] = {"peaks": {}}
    small, large = {**empty, **result_of(1)}, {**empty, **result_of(2)}
    clock = extrapolate_layers(small, large, (2, 4, 8), 0)["clock"]
    assert [each["seconds"] for each in clock["segments"]] == [10, 16, 12, 20, 40]
    assert clock["segments"][0]["exposed"]["host to device"] == 2
    other = {**empty, "clock": {"segments": result_of()["clock"]["segments"][2:]}}
    assert extrapolate_layers(other, large, (2, 4, 8), 0)["clock"] is None


def test_the_rates_are_the_plan_s() -> None:
    """A part of the plan is its work by the same rates: what the CPU steps, what PCIe moves, what compute multiplies."""
    rates = clock_rates(PLAN)
    assert rates is not None
    assert ClockRates.from_json(json.loads(json.dumps(rates.to_json()))) == rates
    assert PLAN.time is not None
    assert PLAN.settings is not None
    adam_bytes = 28 * 8.03e9 / 8
    assert PLAN.time.seconds_of("CPU optimizer") == pytest.approx(adam_bytes * rates.host_memory, rel=0.25)
    assert rates.links.ring(8) == rates.links.link
    slower = replace(PLAN, rates=replace(PLAN.rates, scale=replace(PLAN.rates.scale, compute=2.0, pcie=3.0)))
    scaled = clock_rates(slower)
    assert scaled is not None
    assert (scaled.matmul, scaled.pcie) == pytest.approx((2 * rates.matmul, 3 * rates.pcie))
    assert clock_rates(plan_of("llama-3.1-8b", zero={"stage": 1}, parallel={"pipeline_parallel_size": 2})) is None
