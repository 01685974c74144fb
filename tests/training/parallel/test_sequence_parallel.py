# SPDX-License-Identifier: Apache-2.0
"""Ulysses, alone and beside AutoTP: the same losses, norms and evaluation as one process, packed or not, at every ZeRO
stage.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.support.training.parallel_cases as table
from harness.runtime.micro_batch import IGNORE_INDEX, MicroBatch, copy_to_device
from harness.runtime.parallel.sequence_parallel import UlyssesAttention, causal_mask, is_packed, split_sequence
from tests.support.training import parallel_runs
from tests.support.training.allocations import peak_of
from tests.support.training.forked_ranks import ForkedRanks

JOBS = Path(__file__).parents[1] / "jobs"
CASES = (*table.CI_SEQUENCE, *table.CI_TENSOR_SEQUENCE)


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[table.Case, parallel_runs.Result]:
    found = parallel_runs.run(CASES, tmp_path_factory.mktemp("sequence"), forked.run)
    return {result.case: result for result in found}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_one_process(case: table.Case, results: dict[table.Case, parallel_runs.Result]) -> None:
    assert results[case].passed, results[case]
    assert results[case].in_chunks == case.in_chunks


def test_what_cannot_be_split_is_refused(forked: ForkedRanks) -> None:
    forked.run(JOBS / "sequence_refusals.py", ranks=2)


def test_sq002_groups_of_the_json_alone_leave_gradients_unreduced_below_stage_3(
    forked: ForkedRanks, tmp_path: Path
) -> None:
    forked.run(JOBS / "mesh_gradients.py", str(tmp_path / "found.json"), ranks=2)
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
    """And nothing is read back from the device: `meta` has no values, as a device that is not waited for."""
    masks: list[torch.Tensor | None] = []

    def attend(*args: Any, **_: Any) -> tuple[torch.Tensor, None]:
        masks.append(args[4])
        return args[1], None

    attention = UlyssesAttention(attend, "sdpa", None, torch.nn.Linear(1, 1))
    positions, heads = torch.arange(4)[None].to("meta"), torch.empty(1, 1, 4, 1, device="meta")
    for packed, window in ((False, None), (True, None), (False, 2)):
        attention.start_forward(positions, packed=packed)
        options = {"position_ids": positions, "sliding_window": window}
        attention._attend_with_mask(torch.nn.Identity(), heads, heads, heads, None, **options)
    assert [None if mask is None else mask.shape for mask in masks] == [None, (1, 1, 4, 4), (1, 1, 4, 4)]


def test_a_mask_lets_a_position_see_its_window_and_document() -> None:
    windowed, packed = causal_mask(torch.arange(4)[None], 2), causal_mask(torch.tensor([[0, 1, 0, 1]]), None)
    assert windowed[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert packed[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_the_host_knows_which_rows_are_packed() -> None:
    ids = torch.zeros(2, 4, dtype=torch.long)
    whole = torch.arange(4).expand(2, 4)
    assert not is_packed(MicroBatch(ids, ids))
    assert not is_packed(MicroBatch(ids, ids, whole))
    assert is_packed(MicroBatch(ids, ids, torch.stack([whole[0], torch.tensor([0, 1, 0, 1])])))


def test_parts_of_rows_reach_a_device_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU can pin nothing, so that the call is counted; `meta` stands for the device."""
    pinned: list[tuple[int, ...]] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append((*tensor.shape, tensor.is_contiguous()))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    ids = torch.arange(16).reshape(2, 8)
    parts = split_sequence(MicroBatch(ids, ids), 2, 1)
    assert [copy_to_device(part, torch.device("meta")).device.type for part in parts] == ["meta"] * 3
    assert pinned == [(2, 4, True)] * 3
    MicroBatch(ids, ids, ids).to_model_inputs(torch.device("meta"))
    assert pinned[3:] == [(2, 8, True)] * 2
    assert copy_to_device(ids, torch.device("cpu")) is ids


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
    assert (found.dtype, found.shape) == (torch.bool, (len(positions), 1, length, length))
    assert torch.equal(found[:, 0], expected)


@pytest.mark.parametrize(("positions", "window"), MASKED)
def test_a_mask_takes_a_byte_for_each_pair_while_it_is_made(positions: torch.Tensor, window: int | None) -> None:
    """Beside vectors of the length: a square of int64 would be eight times as much, 34 GB at 65,536 tokens."""
    pairs = positions.shape[1] * positions.numel()
    assert peak_of(lambda: causal_mask(positions, window)) < 1.1 * pairs
