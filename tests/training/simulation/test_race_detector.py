# SPDX-License-Identifier: Apache-2.0
"""The race detector: sequences whose order is known, every way to train without a race, and a sample of the faults that
were seeded. `benchmarks/simulated_races.py` has all faults and all recipes.

Some faults need more than 2 layers of width 64: those of NVMe tensors of 1 MiB, and
`activation-offloaded-before-computed` 3 layers, since `transformers` reads a mask on the host
(`masking_utils._ignore_causal_mask_sdpa`) between the first layer's input and its copy.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import IS_NIGHT
from tests.simulation.seeded_faults import FAULTS
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.race_requests import (
    WAYS,
    WITHOUT_PATCH,
    cases_of_faults,
    cases_of_runs,
    find_races,
    is_found,
)
from tests.training.jobs import race_sequences

SAMPLE = (
    "stage12-bucket-not-flipped",
    "freed-weights-not-recorded",
    "norm-of-gradients-in-flight",
    "partitions-left-on-host",
    "activation-offloaded-before-computed",
    "weights-copy-marked-before-it-begins",
)
PARTS_OF_OTHERS = ("zero0", "zero1", "zero2", "zero3_cpu", "zero3_nvme", "lora")
"""Ways by night: what they do, `zero2_small_bucket`, `zero3`, `zero3_cpu_groups` and `zero3_nvme_params` do, too."""
WAYS_BY_DAY = {name: way for name, way in WAYS.items() if IS_NIGHT or name not in PARTS_OF_OTHERS}
FIRST_SIDES = {
    "two_streams": "unordered: write zeros by default stream, read add by stream",
    "ranges_of_one_buffer": "unordered: write fill_ by default stream, write fill_ by stream",
    "readers_on_two_streams": "unordered: read add by stream, write zero_ by default stream",
    "event_on_another_stream": "unordered: write fill_ by default stream, read add by stream",
    "copy_to_page_locked": "unordered: write copy_ by default stream, read sum by host",
    "copy_to_pageable": "unordered: write _to_copy by default stream, read add by host",
    "page_locked_rows_filled_again": "unordered: read _to_copy by default stream, write fill_ by host",
    "pageable_rows_filled_again": "unordered: read _to_copy by default stream, write fill_ by host",
    "boolean_index": "unordered: write copy_ by default stream, write fill_ by host",
    "collective_waited_for": "unordered: write _allgather_base_ by collectives, read add by default stream",
    "earlier_collective": "unordered: write _allgather_base_ by collectives, read add by default stream",
    "blocking_collective_on_a_side_stream": "unordered: write allreduce_ by stream, read add by default stream",
    "memory_of_another_stream": "reused: read add by stream, write ones by default stream",
    "memory_freed_before_the_order": "reused: read add by stream, write zeros by default stream",
    "memory_allocated_for_another_stream": "reused: write earlier use of this memory by default stream, write fill_ by stream",
    "disk_read": "unordered: write async_pread by disk, read add by host",
    "disk_write_of_a_copy": "unordered: write copy_ by default stream, read async_pwrite by disk",
    "two_requests_of_a_handle": "unordered: read async_pwrite by disk, write async_pread by disk",
}


@pytest.fixture(scope="module")
def answers(simulated: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Races by case; a case that failed is its error."""
    cases = {"sequences": {}} | cases_of_runs(WAYS_BY_DAY) | cases_of_runs(WITHOUT_PATCH) | cases_of_faults(SAMPLE)
    return find_races(cases, tmp_path_factory.mktemp("races"), simulated)


@pytest.mark.parametrize("name", race_sequences.SEQUENCES)
def test_a_sequence_has_a_race_only_without_its_order(answers: dict[str, Any], name: str) -> None:
    """Both sides are named, with the lines of the sequence."""
    sequences = answers["sequences"]
    assert sequences[name] == []
    race = sequences[f"{name} without"][0]
    assert _describe(race) == FIRST_SIDES[name]
    assert "race_sequences.py:" in race["second"]["line"]
    assert "race_sequences.py:" in race["first"]["line"] or race["first"]["line"] == "torch's allocator"


@pytest.mark.parametrize("name", WAYS_BY_DAY)
def test_a_way_to_train_has_no_race(answers: dict[str, Any], name: str) -> None:
    """DeepSpeed's engine, the harness's stepper and patches: two steps of two micro-batches, save, evaluation, resume."""
    assert answers[name].get("races") == [], answers[name]
    assert bool(answers[name]["disk"]) == ("nvme" in name)


@pytest.mark.parametrize("name", WITHOUT_PATCH)
def test_a_patch_closes_a_race(answers: dict[str, Any], name: str) -> None:
    assert answers[name]["races"]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_seeded_fault_is_found(answers: dict[str, Any], name: str) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    assert is_found(fault, answers[name]), answers[name]


def _describe(race: dict[str, Any]) -> str:
    sides = []
    for side in (race["first"], race["second"]):
        stream = side["stream"]
        name = next(
            (
                short
                for short in ("default stream", "collectives", "stream", "host", "disk")
                if stream.startswith(short)
            ),
            stream,
        )
        sides.append(f"{side['action']} {side['operator']} by {name}")
    return f"{race['kind']}: {', '.join(sides)}"
