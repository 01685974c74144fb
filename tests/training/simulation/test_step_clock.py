# SPDX-License-Identifier: Apache-2.0
"""The clock of the simulated device: sequences whose seconds are counted by hand, and an engine in miniature."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.simulated_ranks import simulate_cases

GATHER = 0.6
"""800 bytes x 3/4 over 1,000 bytes a second."""
EXPECTED: dict[str, tuple[float, dict[str, float], dict[str, float]]] = {
    "a_product_and_a_kernel": (2.0, {"compute": 2.0}, {"compute": 2.0}),
    "two_kernels_on_two_streams": (2.0, {"compute": 2.0}, {"compute": 2.0}),
    "a_copy_behind_a_product": (1.0, {"compute": 1.0, "host to device": 0.4}, {"compute": 1.0, "host to device": 0.0}),
    "a_copy_after_an_event": (2.0, {"compute": 2.0, "host to device": 0.4}, {"compute": 2.0, "host to device": 0.0}),
    "a_copy_on_the_same_stream": (2.4, {"compute": 2.0, "device to host": 0.4}, {"compute": 2.0, "device to host": 0.4}),
    "a_copy_from_pageable_memory": (1.4, {"compute": 1.0, "host to device": 0.4}, {"compute": 1.0, "host to device": 0.4}),
    "two_copies_in_one_direction": (0.8, {"host to device": 0.8}, {"host to device": 0.8}),
    "copies_in_both_directions": (0.4, {"host to device": 0.4, "device to host": 0.4}, {"host to device": 0.4, "device to host": 0.0}),
    "a_gather_that_is_waited_for": (1 + GATHER, {"compute": 1.0, "all-gather": GATHER}, {"compute": 1.0, "all-gather": GATHER}),
    "a_gather_ahead": (1.0, {"compute": 1.0, "all-gather": GATHER}, {"compute": 1.0, "all-gather": 0.0}),
    "a_blocking_gather": (2 + GATHER, {"compute": 2.0, "all-gather": GATHER}, {"compute": 2.0, "all-gather": GATHER}),
    "an_all_reduce": (2 * GATHER, {"reduce": 2 * GATHER}, {"reduce": 2 * GATHER}),
    "a_ring_between_hosts": (3.2, {"all-gather": 3.2}, {"all-gather": 3.2}),
    "products_of_experts": (0.32768, {"compute": 0.32768}, {"compute": 0.32768}),
    "a_causal_attention": (0.7168, {"compute": 0.7168}, {"compute": 0.7168}),
    "a_poll_of_an_event": (2.6, {"compute": 1.0, "CPU optimizer": 1.6}, {"compute": 1.0, "CPU optimizer": 1.6}),
    "cpu_adam_beside_the_gpu": (2.8, {"compute": 1.0, "CPU optimizer": 2.8}, {"compute": 1.0, "CPU optimizer": 1.8}),
    "cpu_adam_after_the_gpu": (3.8, {"compute": 1.0, "CPU optimizer": 2.8}, {"compute": 1.0, "CPU optimizer": 2.8}),
    "cpu_adam_into_other_tensors": (3.2, {"CPU optimizer": 3.2}, {"CPU optimizer": 3.2}),
    "a_value_is_read": (1.404, {"compute": 1.004, "disk read": 0.4}, {"compute": 1.004, "disk read": 0.4}),
    "a_read_behind_the_cpu": (2.8, {"CPU optimizer": 2.8, "disk read": 0.4}, {"CPU optimizer": 2.8, "disk read": 0.0}),
    "a_read_that_is_waited_for": (3.2, {"CPU optimizer": 2.8, "disk read": 0.4}, {"CPU optimizer": 2.8, "disk read": 0.4}),
    "a_read_and_a_write": (0.8, {"disk read": 0.4, "disk write": 0.4}, {"disk read": 0.4, "disk write": 0.4}),
}  # fmt: skip
"""Seconds of the sequence, those of each kind that are busy, and those that no kind before it hides."""


@pytest.fixture(scope="module")
def answers(simulated: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the clock says of each sequence."""
    folder = tmp_path_factory.mktemp("clock")
    return dict(simulate_cases("clock_sequences.py", {"all": None}, folder, simulated)["all"]["answer"])


@pytest.mark.parametrize("name", EXPECTED)
def test_seconds_are_those_of_the_hand(answers: dict[str, Any], name: str) -> None:
    seconds, busy, exposed = EXPECTED[name]
    (segment,) = answers[name]["segments"]
    assert segment["seconds"] == pytest.approx(seconds, rel=1e-4)
    assert segment["busy"] == pytest.approx(busy, rel=1e-4)
    assert segment["exposed"] == pytest.approx(exposed, rel=1e-4)


def test_a_trace_has_a_track_for_each_stream(answers: dict[str, Any]) -> None:
    """With the line that called; a copy is on the track of its stream, the CPU and the disk have their own."""
    trace = answers["a_copy_after_an_event"]["trace"]
    texts = trace["texts"]
    rows = [[texts[number] for number in row[:5]] + row[5:] for row in trace["slices"]]
    products, (copy,) = ([row for row in rows if row[1] == name] for name in ("mm", "copy_"))
    assert [row[5:] for row in products] == [[0.0, 2e6, 2]]  # neighbours of one line are one slice
    assert copy[5:] == [1e6, 4e5, 1]
    assert copy[0].startswith("stream ")
    assert copy[2:4] == ["host to device", "forward"]
    assert "clock_sequences.py:" in copy[4]
    assert trace["phases"] == [["forward", 0.0, 2e6]]
    trace = answers["a_read_behind_the_cpu"]["trace"]
    assert {trace["texts"][row[0]] for row in trace["slices"]} == {"CPU optimizer", "disk read"}
