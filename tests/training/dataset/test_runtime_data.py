# SPDX-License-Identifier: Apache-2.0
"""Splitting and drawing: single process, no engine."""

from __future__ import annotations

import json
import math
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.run.resolved_run import resolve_run
from harness.runtime.dataset.eval_split import split_eval
from harness.runtime.dataset.preparation import PreparedData, PreparedGroup, unigram_cross_entropy
from harness.runtime.dataset.sampler import EvalData, TrainData, open_eval_data, open_train_data
from harness.runtime.dataset.token_dataset import BlockDataset, DocumentDataset, TokenDataset
from harness.runtime.micro_batch import IGNORE_INDEX, BatchGeometry
from harness.runtime.train_state import DataPosition
from harness.spec.run_spec import RunSpec
from tests.support.training.data_helpers import prepared as prepare


def run(**data: Any) -> Any:
    return resolve_run(RunSpec.model_validate_json(json.dumps({"data": data})))


def test_tokens_are_stored_flat_with_an_end_after_each_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "b.txt").write_text("c")
    found, place = prepare(tmp_path, train=str(tmp_path / "*.txt"))
    tokens = np.load(place / "train.npy", mmap_mode="r")
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [97, 98, 256, 99, 256]
    assert (found.train_tokens, found.eval_tokens, found.unigram_entropy) == (5, 0, None)
    assert PreparedData.read(place) == found


def test_a_held_out_file_of_its_own_is_used_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 50)
    (tmp_path / "b.txt").write_text("b" * 20)
    found, _ = prepare(tmp_path, train=str(tmp_path / "a.txt"), eval=str(tmp_path / "b.txt"))
    assert (found.train_tokens, found.eval_tokens) == (51, 21)


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), min_size=2, max_size=40), st.floats(0.01, 0.5), st.integers(0, 9))
def test_the_split_is_by_whole_documents_about_the_share_asked_for(
    sizes: list[int], fraction: float, seed: int
) -> None:
    lengths = np.array(sizes)
    held = split_eval(lengths, fraction, seed, divisible=True)
    wanted = fraction * sum(sizes)
    assert (held.cut_document is None) == bool(len(held.documents)), "something is held out whenever that was asked for"
    assert len(held.documents) < len(sizes)
    assert lengths[held.documents].sum() <= max(1, 2 * wanted)
    again = split_eval(lengths, fraction, seed, divisible=True)
    assert again.documents.tolist() == held.documents.tolist()
    whole = split_eval(lengths, fraction, seed, divisible=False)
    assert whole.cut_document is None
    assert len(whole.documents) >= 1


def test_another_seed_holds_other_documents_out() -> None:
    sizes = np.full(9, 10)
    assert len({tuple(split_eval(sizes, 0.3, seed, divisible=True).documents) for seed in range(20)}) > 5


def test_a_single_document_is_cut_at_a_line(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(100))
    (tmp_path / "a.txt").write_text(text)
    _, place = prepare(tmp_path, train=str(tmp_path / "a.txt"), eval_fraction=0.1)
    kept, held = (bytes(t for t in np.load(place / f"{role}.npy").tolist() if t < 256) for role in ("train", "eval"))
    assert (kept + held).decode() == text
    assert kept.endswith(b"\n")
    assert 0.08 < len(held) / len(text) < 0.13
    for role in ("train", "eval"):
        assert np.load(place / f"{role}.npy")[-1] == 256


def test_the_tail_of_a_single_packed_text_is_held_out_too(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(100))
    (tmp_path / "a.txt").write_text(text)
    found, place = prepare(tmp_path, train=str(tmp_path / "a.txt"), eval_fraction=0.1, packing=True, max_length=64)
    kept, held = (bytes(t for t in np.load(place / f"{role}.npy").tolist() if t < 256) for role in ("train", "eval"))
    assert (kept + held).decode() == text
    assert 0.08 < len(held) / len(text) < 0.13
    assert found.eval_tokens == len(held) + 1  # and the end of the text
    assert (found.train_documents, found.eval_documents) == (1, 1), "of 13 and 2 pieces"


@pytest.mark.parametrize("packed", [False, True])
def test_the_fill_counts_the_padding_of_all_ranks(packed: bool) -> None:
    """With rank 0's micro-batches alone for all of them, short rows there would say more than 100 %."""
    lengths = np.array([1, 1, 4, 4, 2, 3, 4, 1, 2])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = DocumentDataset(np.zeros(22), None, offsets, np.arange(10), lengths - 1, packed)
    data = TrainData(TokenDataset((rows,), 4), BatchGeometry(2, 1, 2), 0, 3, False)
    positions = 8 * 4 if packed else 2 * (1 + 4 + 3 + 4)
    assert data.fill_ratio(1_000_000) == pytest.approx(20 / positions)
    assert data.fill_ratio(4) == pytest.approx(10 / (4 * 4 if packed else 2 * (1 + 4)))


def test_unigram_cross_entropy_is_in_nats_a_token() -> None:
    train, held = np.array([7, 1, 0]), np.array([2, 1, 1])
    by_hand = -(2 * math.log(8 / 11) + math.log(2 / 11) + math.log(1 / 11)) / 4
    assert unigram_cross_entropy(train, held) == pytest.approx(by_hand, rel=1e-12)


def train_data(blocks: int, shape: BatchGeometry, rank: int, *, seed: int = 3, shuffle: bool = True) -> TrainData:
    tokens = np.repeat(np.arange(blocks), 4).astype(np.uint16)
    return TrainData(TokenDataset((BlockDataset(tokens, 4),), 4), shape, rank, seed, shuffle)


def taken(data: TrainData, position: DataPosition) -> tuple[list[Any], DataPosition]:
    """(ids of the micro-batches, the next position)."""
    drawn = data.batch_at(position)
    return [batch.input_ids for batch in drawn.micro_batches], drawn.next_position


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 30), st.booleans())
def test_an_epoch_draws_every_sequence_once_over_all_ranks(
    micro: int, parts: int, ranks: int, more: int, shuffle: bool
) -> None:
    shape = BatchGeometry(micro, parts, ranks)
    count = shape.global_batch_size + more
    drawn: list[int] = []
    ends = set()
    for rank in range(ranks):
        data, position = train_data(count, shape, rank, shuffle=shuffle), DataPosition()
        for _ in range(data.steps_per_epoch):
            batches, position = taken(data, position)
            assert [tuple(b.shape) for b in batches] == [(micro, 4)] * parts
            drawn += [int(row[0]) for b in batches for row in b]
        ends.add(position)
    assert len(drawn) == len(set(drawn)) == count // shape.global_batch_size * shape.global_batch_size
    assert len(ends) == 1
    assert ends.pop().epoch == 0


def test_epochs_differ_and_positions_can_be_sought() -> None:
    data = train_data(20, BatchGeometry(2, 1, 1), 0)
    position, seen, places = DataPosition(), [], []
    for _ in range(25):
        places.append(position)
        batches, position = taken(data, position)
        seen.append(batches[0][:, 0].tolist())
    assert seen[:10] != seen[10:20]
    assert sorted(chain(*seen[:10])) == sorted(chain(*seen[10:20])) == list(range(20))
    assert [taken(data, place)[0][0][:, 0].tolist() for place in places] == seen
    assert taken(train_data(20, BatchGeometry(2, 1, 1), 0), places[12])[0][0][:, 0].tolist() == seen[12]
    assert position == DataPosition(2, 10)


def test_a_rest_that_is_no_whole_batch_is_dropped() -> None:
    data = train_data(7, BatchGeometry(1, 1, 3), 0)
    second = data.batch_at(DataPosition(0, 3)).next_position
    assert second == DataPosition(0, 6)
    assert data.batch_at(second).next_position == DataPosition(1, 3)


def test_without_shuffling_the_order_is_that_of_the_file() -> None:
    data = train_data(6, BatchGeometry(2, 1, 1), 0, shuffle=False)
    assert taken(data, DataPosition(1, 2))[0][0][:, 0].tolist() == [2, 3]


@settings(deadline=None)
@given(st.integers(1, 23), st.integers(1, 5), st.integers(1, 4))
def test_evaluation_sees_every_sequence_once_in_equally_many_batches(count: int, micro: int, ranks: int) -> None:
    rows = TokenDataset((BlockDataset(np.repeat(np.arange(count), 3).astype(np.uint16), 3),), 3)
    seen: list[int] = []
    numbers = set()
    for rank in range(ranks):
        batches = list(EvalData(rows, micro, rank, ranks).batches(None))
        numbers.add(len(batches))
        for batch in batches:
            assert batch.input_ids.shape == batch.labels.shape == (micro, 3)
            seen += [int(row[0]) for row in batch.labels if row[0] != IGNORE_INDEX]
    assert sorted(seen) == list(range(count))
    assert len(numbers) == 1


def prepared(train: int, held: int) -> PreparedData:
    parts = [
        PreparedGroup(name, 0, False, False, None, 1, count, count, "")
        for name, count in (("train", train), ("eval", held))
    ]
    return PreparedData(train, held, 1, 1, None, "", (parts[0],), (parts[1],))


def test_too_little_text_is_refused_with_the_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "train.npy", np.zeros(70, dtype=np.uint16))
    np.save(tmp_path / "eval.npy", np.zeros(5, dtype=np.uint16))
    with pytest.raises(UserError) as refused:
        open_train_data(run(max_length=10), tmp_path, prepared(70, 5), BatchGeometry(2, 2, 2), 0)
    (finding,) = refused.value.findings
    assert finding.message == "a step needs 8 sequences, and the training data has 7 of them"
    assert finding.notes[0] == "a sequence has at most 10 tokens (`data.max_length`), the training data has 70"
    with pytest.raises(UserError) as refused:
        open_eval_data(run(max_length=10), tmp_path, prepared(70, 5), BatchGeometry(2, 2, 2), 0)
    assert "5 tokens" in refused.value.findings[0].message
    assert open_eval_data(run(max_length=10), tmp_path, prepared(70, 0), BatchGeometry(2, 2, 2), 0) is None


@pytest.mark.parametrize(("data", "gate"), [({}, "MD117"), ({"train": "EMPTY"}, "MD121")])
def test_no_text_is_refused(tmp_path: Path, data: dict[str, str], gate: str) -> None:
    (tmp_path / "empty.txt").write_text("")
    given_data = {k: str(tmp_path / "empty.txt") for k in data}
    with pytest.raises(UserError) as refused:
        prepare(tmp_path, **given_data)
    assert refused.value.findings[0].gate == gate
    if data:
        with pytest.raises(UserError) as refused:
            prepare(tmp_path, **given_data, on_bad_record="skip")
        assert refused.value.findings[0].gate == "MD114"
