# SPDX-License-Identifier: Apache-2.0
"""Collectives of a step by kind: beside the ring formulas of the ZeRO paper, and beside the parts of a step."""

from __future__ import annotations

from typing import Any

import pytest

from harness.facts.devices import find_device
from harness.facts.model_lookup import find_model
from harness.plan.search.bare_count import count_model_states
from harness.plan.time.collective_traffic import CollectiveTraffic, list_collectives
from harness.plan.time.rates import Rates, parse_rate
from harness.plan.time.step_time import estimate_step_time
from tests.support.plan_inputs import settings

NAME = "llama-3.1-8b"
ONE_BATCH = {
    "train": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "gradient_checkpointing": False}
}
NO_REUSE = {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
NETWORK = Rates(network=25e9)


def rows_of(rates: Rates = NETWORK, **sections: Any) -> dict[str, CollectiveTraffic]:
    facts = find_model(NAME).facts
    assert facts is not None
    planned = settings(NAME, 8, **ONE_BATCH | sections)
    rows = list_collectives(facts, planned, find_device("H100-80GB"), rates)
    return {f"{row.collective} {row.carries.split()[0]}": row for row in rows}


@pytest.mark.parametrize(
    ("stage", "kinds", "of_ddp"),
    [
        (0, {"all-reduce gradients"}, 1.0),
        (1, {"all-reduce gradients", "all-gather parameters"}, 1.5),
        (3, {"reduce-scatter gradients", "all-gather parameters"}, 1.5),
    ],
)
def test_a_stage_has_its_collectives_and_its_ratio_to_ddp(stage: int, kinds: set[str], of_ddp: float) -> None:
    rows = rows_of(zero={"stage": stage, **(NO_REUSE if stage == 3 else {})})
    assert set(rows) == kinds
    assert sum(row.of_ddp or 0 for row in rows.values()) == pytest.approx(of_ddp, rel=1e-3)


def test_gradients_in_fp32_are_twice_the_bytes() -> None:
    half, full = (
        rows_of(zero={"stage": 0}, **extra)["all-reduce gradients"]
        for extra in ({}, {"deepspeed": {"communication_data_type": "fp32"}})
    )
    assert full.sent == pytest.approx(2 * half.sent)
    assert (half.carries, full.carries) == ("gradients in 16 bits", "gradients in 32 bits")


def test_the_seconds_are_those_of_the_parts_of_a_step() -> None:
    facts, device = find_model(NAME).facts, find_device("H100-80GB")
    assert facts is not None
    planned = settings(NAME, 8, **ONE_BATCH, parallel={"tensor_parallel_size": 2}, zero={"stage": 1})
    time = estimate_step_time(facts, planned, device, NETWORK)
    assert time is not None
    rows = list_collectives(facts, planned, device, NETWORK)
    parts = ("collectives", "parameters gathered after the step", "tensor and sequence parallelism")
    assert sum(row.seconds or 0 for row in rows) == pytest.approx(sum(map(time.seconds_of, parts)))


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("width", [2, 4])
def test_a_bare_count_sends_what_the_plan_of_a_model_sends(stage: int, width: int) -> None:
    extra = {"deepspeed": {"communication_data_type": "fp32"}} if width == 4 else {}
    rows = rows_of(zero={"stage": stage, **(NO_REUSE if stage == 3 else {})}, **extra)
    share = count_model_states(8_030_261_248, 8, stage, None, width).by_stage[stage]
    assert sum(row.sent for row in rows.values()) == pytest.approx(share.sent, rel=2e-3)
    assert sum(row.of_ddp or 0 for row in rows.values()) == pytest.approx(share.of_ddp, rel=2e-3)


def test_one_all_reduce_of_7b_over_200_gigabit() -> None:
    """Two times 14 GB x 7/8 at 25 GB/s; the lesson that says 9.8 s is wrong by ten."""
    share = count_model_states(7e9, 8, None, None, network=parse_rate("200Gb/s")).by_stage[0]
    assert share.seconds == pytest.approx(0.98)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200Gb/s", 25e9),
        ("200Gbps", 25e9),
        ("400 Gbit/s", 50e9),
        ("200GB/s", 200e9),
        ("200gb/s", 200e9),
        ("25000000000", 25e9),
    ],
)
def test_network_cards_are_sold_in_bits(text: str, rate: float) -> None:
    assert parse_rate(text) == rate
