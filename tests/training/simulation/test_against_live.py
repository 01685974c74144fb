# SPDX-License-Identifier: Apache-2.0
"""Every rank of a run is simulated as it trains, saves and resumes on live ranks: states and tensors of files to the byte,
collectives in their order. A sample of `benchmarks/simulated_against_live.py`, which has all configurations.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.live_comparison import compare_case, compare_rank
from tests.support.training.simulated_cases import CASES, WAYS

SAMPLE = (
    "zero2 bf16 cpu qwen2",
    "zero3 bf16 nvme swapped wide",
    "pipeline 2 zero1 bf16",
    "tensor 2 zero1 bf16 qwen2",
)
MOST_BESIDE_TENSORS = 64 << 10
"""Bytes of a file that are no tensor: names, shapes, settings, and gaps before each tensor."""
BY_NAME = {case.name: case for case in (*CASES, *WAYS)}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_simulated_rank_equals_a_live_one(
    forked: ForkedRanks, simulated: ForkedRanks, tmp_path: Path, name: str
) -> None:
    ranks = compare_case(BY_NAME[name], tmp_path, forked, simulated)
    assert [rank.differences for rank in ranks] == [()] * BY_NAME[name].ranks
    assert all(rank.messages > 20 for rank in ranks)
    assert all(rank.states["gpu.parameters"] > 0 for rank in ranks)
    for rank in ranks:
        assert {name for name in rank.files if "optim_states" in name} <= set(rank.read)
        for num_bytes, file_bytes in (*rank.files.values(), *rank.read.values()):
            assert num_bytes < file_bytes < num_bytes + MOST_BESIDE_TENSORS


def test_a_difference_is_seen() -> None:
    side = {
        "states": {"gpu.parameters": 8},
        "collective_order": [("all-reduce", 4), ("broadcast", 8)],
        "collective_callers": ["deepspeed/runtime/engine.py:1 x", "harness/runtime/distributed.py:2 y"],
        "files": {"a_states.pt": (8, 900)},
    }
    counted = {**side, "files": {"a_states.pt": 8}}
    assert compare_rank(0, side, counted).differences == ()
    assert compare_rank(0, side, counted).messages == 1, "the loop's own messages are left out"
    other = {
        **side,
        "states": {"gpu.parameters": 8, "gpu.master": 4},
        "collective_order": [("all-reduce", 2), ("broadcast", 8)],
        "files": {"a_states.pt": 8, "b_states.pt": 1},
    }
    assert len(compare_rank(0, side, other).differences) == 3
