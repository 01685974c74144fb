# SPDX-License-Identifier: Apache-2.0
"""Ulysses: the same losses, norms and evaluation as one process, packed or not, at every ZeRO stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tests.support.training.parallel_cases as table
from harness.runtime.micro_batch import IGNORE_INDEX, MicroBatch
from harness.runtime.parallel.sequence_parallel import causal_mask, split_sequence
from tests.support.training import parallel_runs
from tests.support.training.allocations import peak_of
from tests.support.training.forked_ranks import ForkedRanks

JOBS = Path(__file__).parents[1] / "jobs"


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[table.Case, parallel_runs.Result]:
    found = parallel_runs.run(table.CI_SEQUENCE, tmp_path_factory.mktemp("sequence"), forked.run)
    return {result.case: result for result in found}


@pytest.mark.parametrize("case", table.CI_SEQUENCE, ids=lambda case: case.name)
def test_agrees_with_one_process(case: table.Case, results: dict[table.Case, parallel_runs.Result]) -> None:
    assert results[case].passed, results[case]
    assert results[case].in_chunks == case.in_chunks


def test_what_cannot_be_split_is_refused(forked: ForkedRanks) -> None:
    forked.run(JOBS / "sequence_refusals.py", ranks=2, timeout=60)


def test_sq002_groups_of_the_json_alone_leave_gradients_unreduced_below_stage_3(
    forked: ForkedRanks, tmp_path: Path
) -> None:
    forked.run(JOBS / "mesh_gradients.py", str(tmp_path / "found.json"), ranks=2, timeout=60)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {"0": [2.0, 0.0], "1": [2.0, 0.0], "2": [2.0, 0.0], "3": [0.5, 0.5]}


def test_shards_hold_each_token_and_its_label_once() -> None:
    ids = torch.arange(1, 15).reshape(2, 7)
    labels = ids.clone()
    labels[:, :2] = IGNORE_INDEX
    batch = MicroBatch(ids, labels)
    parts = [split_sequence(batch, 4, index) for index in range(4)]
    assert [p[0].shape for p in parts] == [(2, 2)] * 4
    joined = [torch.cat([p[i] for p in parts], dim=1) for i in range(3)]
    assert torch.equal(joined[0][:, :7], ids)
    assert torch.equal(joined[1], torch.arange(8).expand(2, 8))
    assert torch.equal(joined[2][:, :6], labels[:, 1:])
    assert bool((joined[2][:, 6:] == IGNORE_INDEX).all())
    assert sum(int((p[2] != IGNORE_INDEX).sum()) for p in parts) == batch.num_targets


def test_shards_of_packed_rows_keep_their_positions() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    ids = torch.zeros((1, 6), dtype=torch.int64)
    parts = [split_sequence(MicroBatch(ids, ids, positions), 4, index)[1] for index in range(4)]
    assert torch.cat(parts, dim=1).tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]


def test_rows_padded_on_the_left_are_not_taken() -> None:
    ids = torch.zeros((1, 4), dtype=torch.int64)
    with pytest.raises(ValueError, match="on the left"):
        split_sequence(MicroBatch(ids, ids, None, torch.tensor([[0, 1, 1, 1]])), 2, 0)
    assert split_sequence(MicroBatch(ids, ids, None, torch.tensor([[1, 1, 1, 0]])), 2, 0)[0].shape == (1, 2)


def test_a_mask_is_made_only_where_order_does_not_say_it_all() -> None:
    one = torch.arange(4)[None]
    assert causal_mask(one, None) is None
    windowed = causal_mask(one, 2)
    packed = causal_mask(torch.tensor([[0, 1, 0, 1]]), None)
    assert windowed is not None
    assert packed is not None
    assert windowed[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert packed[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


PACKED = torch.cat([torch.arange(200), torch.arange(1), torch.arange(311)])[None]
OTHER = torch.cat([torch.arange(17), torch.arange(495)])[None]
WHOLE = torch.arange(512)[None]
MASKED = [
    pytest.param(positions, window, id=f"{name}-{window}")
    for name, positions in (("packed", PACKED), ("whole", WHOLE), ("two-rows", torch.cat([PACKED, OTHER])))
    for window in (None, 1, 64, 4096)
    if name != "whole" or window
]


@pytest.mark.parametrize(("positions", "window"), MASKED)
def test_a_mask_lets_each_position_see_its_document_and_window(positions: torch.Tensor, window: int | None) -> None:
    length = positions.shape[1]
    documents = (positions == 0).cumsum(1)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    expected = (distance >= 0) & (documents[:, :, None] == documents[:, None, :])
    expected &= distance < (window or length)
    found = causal_mask(positions, window)
    assert found is not None
    assert (found.dtype, found.shape) == (torch.bool, (len(positions), 1, length, length))
    assert torch.equal(found[:, 0], expected)


@pytest.mark.parametrize(("positions", "window"), MASKED)
def test_a_mask_takes_a_byte_for_each_pair_while_it_is_made(positions: torch.Tensor, window: int | None) -> None:
    """Beside vectors of the length: a square of int64 would be eight times as much, 34 GB at 65,536 tokens."""
    pairs = positions.shape[1] * positions.numel()
    assert peak_of(lambda: causal_mask(positions, window)) < 1.1 * pairs
