# SPDX-License-Identifier: Apache-2.0
"""Closed forms of pipeline schedules against the schedules played through. Needs nothing; a second."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from harness.plan.degrees.pass_sequence import Pass, StageOrder, order_passes
from harness.plan.degrees.pipeline_timeline import StuckOrder, simulate_timeline
from harness.plan.time.pipeline_schedule import (
    SCHEDULES,
    PassCost,
    Schedule,
    bubble_fraction,
    bubble_overhead,
    bubble_seconds,
    micro_batches_in_flight,
)

Case = tuple[Schedule, int, int, int]


def cases() -> Iterator[Case]:
    """(schedule, stages, micro-batches, chunks), where the schedule allows it."""
    for schedule in SCHEDULES:
        for stages in (1, 2, 3, 4, 6, 8, 16):
            for micro_batches in (1, 2, 4, 8, 16, 32, 48):
                for chunks in (2, 3, 4) if schedule == "interleaved" else (1,):
                    if schedule == "interleaved" and micro_batches % stages:
                        continue
                    if schedule == "dualpipe" and (stages % 2 or micro_batches % 2 or micro_batches < 2 * stages):
                        continue
                    if schedule == "zb-h1" and micro_batches < stages:
                        continue
                    yield schedule, stages, micro_batches, chunks


CASES = list(cases())


def test_every_schedule_has_cases() -> None:
    assert {case[0] for case in CASES} == set(SCHEDULES)
    assert len(CASES) > 150


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_bubble_is_what_the_closed_form_says(case: Case) -> None:
    schedule, stages, micro_batches, chunks = case
    orders = order_passes(schedule, stages, micro_batches, chunks)
    timeline = simulate_timeline(orders, [PassCost(1 / chunks, 2 / chunks, 1 / chunks)] * stages)
    assert timeline.bubble == pytest.approx(bubble_seconds(schedule, stages, micro_batches, chunks))
    share = bubble_fraction(schedule, stages, micro_batches, chunks)
    assert timeline.bubble / timeline.seconds == pytest.approx(share)


def most_held(order: StageOrder) -> int:
    """Passes whose activations a stage holds at most: from the forward to the last of its backward passes."""
    splits = {each[1:] for step in order for each in step if each.kind == "weight"}
    held = most = 0
    for step in order:
        for each in step:
            if each.kind == "forward":
                held += 1
                most = max(most, held)
            elif each.kind == "weight" or (each.kind == "backward" and each[1:] not in splits):
                held -= 1
    return most


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_stage_holds_what_the_closed_form_says(case: Case) -> None:
    schedule, stages, micro_batches, chunks = case
    for stage, order in enumerate(order_passes(schedule, stages, micro_batches, chunks)):
        held = micro_batches_in_flight(stages, stage, micro_batches, schedule, chunks)
        assert most_held(order) / chunks == pytest.approx(held)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_pass_is_there_once(case: Case) -> None:
    schedule, stages, micro_batches, chunks = case
    passes = [
        each for order in order_passes(schedule, stages, micro_batches, chunks) for step in order for each in step
    ]
    assert len(passes) == len(set(passes))
    places = {(each.micro_batch, each.position) for each in passes}
    assert places == {(m, position) for m in range(micro_batches) for position in range(stages * chunks)}
    backward = [each for each in passes if each.kind in ("backward", "input")]
    weights = {each[1:] for each in passes if each.kind == "weight"}
    assert len(backward) == len(places)
    assert weights == {each[1:] for each in passes if each.kind == "input"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_starts_before_what_it_needs(case: Case) -> None:
    """Checked on the boxes, not by the rule that placed them."""
    schedule, stages, micro_batches, chunks = case
    orders = order_passes(schedule, stages, micro_batches, chunks)
    boxes = simulate_timeline(orders, [PassCost()] * stages, latency=0.25).boxes
    ends = {box.work: box.end for box in boxes}
    stage_of = {(box.work.position, box.work.micro_batch): box.stage for box in boxes}
    for box in boxes:
        kind, micro_batch, position = box.work
        if kind == "forward" and position:
            assert box.start >= ends[Pass("forward", micro_batch, position - 1)] + 0.25
        if kind in ("backward", "input"):
            assert box.start >= ends[Pass("forward", micro_batch, position)]
            later = [ends.get(Pass(each, micro_batch, position + 1)) for each in ("backward", "input")]  # type: ignore[arg-type]
            assert all(end is None or box.start >= end + 0.25 or len(orders) == 1 for end in later)
        assert stage_of[position, micro_batch] == box.stage
    for stage in range(stages):
        own = [box for box in boxes if box.stage == stage]
        assert all(before.end <= after.start for before, after in itertools.pairwise(own))


def test_the_pictures_of_the_papers() -> None:
    assert bubble_fraction("naive", 4, 8) == 0.75
    assert bubble_fraction("1f1b", 4, 8) == pytest.approx(0.273, abs=0.001)
    assert bubble_fraction("1f1b", 8, 32) == pytest.approx(0.179, abs=0.001)
    assert bubble_overhead("interleaved", 4, 8, 2) == bubble_overhead("1f1b", 4, 8) / 2
    # DualPipe's report, figure 5: 8 ranks and 20 micro-batches
    assert bubble_seconds("dualpipe", 8, 20) == 3 * (3 + 2 - 3)
    assert bubble_seconds("zb-h1", 4, 8) == bubble_seconds("1f1b", 4, 8) / 3


def test_uneven_stages_stay_between_the_bounds() -> None:
    draw = random.Random(0)  # noqa: S311 - the same draws each time
    for _ in range(50):
        stages, micro = draw.randint(1, 6), draw.randint(1, 12)
        both = [draw.uniform(0.5, 1.5) for _ in range(stages)]
        costs = [PassCost(each, each, 0.0) for each in both]
        seconds = simulate_timeline(order_passes("1f1b", stages, micro), costs).seconds
        assert seconds <= sum(2 * t for t in both) + (micro - 1) * 2 * max(both) + 1e-9
        assert seconds >= micro * 2 * max(both) - 1e-9


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 8), (8, 32)])
def test_every_message_waits(stages: int, micro_batches: int) -> None:
    """The first forward and the last backward cross every border; so the latency counts at least so often."""
    orders = order_passes("1f1b", stages, micro_batches)
    seconds = [simulate_timeline(orders, [PassCost(1, 1, 0)] * stages, latency).seconds for latency in (0.0, 0.01)]
    extra = seconds[1] - seconds[0]
    assert 2 * (stages - 1) * 0.01 <= extra + 1e-9 <= 2 * (micro_batches + stages - 2) * 0.01 + 2e-9


def test_an_order_that_waits_for_itself_is_refused() -> None:
    orders = [list(reversed(order)) for order in order_passes("1f1b", 2, 2)]
    with pytest.raises(StuckOrder):
        simulate_timeline(orders, [PassCost()] * 2)
