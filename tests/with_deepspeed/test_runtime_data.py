"""Preparing, splitting and drawing: single process, no engine."""

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

from harness.errors import Refused
from harness.plan.run import resolve
from harness.runtime.data import IGNORED, Blocks, EvalData, Shape, TrainData, open_eval, open_train
from harness.runtime.prepare import Prepared, prepare, split, unigram_cross_entropy
from harness.runtime.sources import Documents
from harness.runtime.state import Position
from harness.runtime.tokens import byte_tokenizer
from harness.spec.model import RunSpec

TOKENIZER = byte_tokenizer()


def run(**data: Any) -> Any:
    return resolve(RunSpec.model_validate_json(json.dumps({"data": data})))


def documents(texts: list[str]) -> Documents:
    return Documents(len(texts), lambda i: texts[i], str)


def test_tokens_are_stored_flat_with_an_end_after_each_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "b.txt").write_text("c")
    prepared = prepare(run(train=str(tmp_path / "*.txt"), eval_fraction=0.0), TOKENIZER, tmp_path / "data")
    tokens = np.load(tmp_path / "data" / "train.npy", mmap_mode="r")
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [97, 98, 256, 99, 256]
    assert (prepared.train_tokens, prepared.eval_tokens, prepared.unigram_entropy) == (5, 0, None)
    assert Prepared.read(tmp_path / "data") == prepared


def test_the_fingerprint_follows_the_text(tmp_path: Path) -> None:
    prints = []
    for i, text in enumerate(["ab", "ab", "ac"]):
        (tmp_path / "a.txt").write_text(text)
        prints.append(
            prepare(run(train=str(tmp_path / "a.txt"), eval_fraction=0.0), TOKENIZER, tmp_path / str(i)).sha256
        )
    assert prints[0] == prints[1] != prints[2]


def test_a_held_out_file_of_its_own_is_used_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 50)
    (tmp_path / "b.txt").write_text("b" * 20)
    prepared = prepare(run(train=str(tmp_path / "a.txt"), eval=str(tmp_path / "b.txt")), TOKENIZER, tmp_path / "data")
    assert (prepared.train_tokens, prepared.eval_tokens) == (51, 21)


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), min_size=2, max_size=40), st.floats(0.01, 0.5), st.integers(0, 9))
def test_the_split_is_by_whole_documents_about_the_share_asked_for(
    sizes: list[int], fraction: float, seed: int
) -> None:
    texts = [f"{i}:".ljust(size + 4, "x") for i, size in enumerate(sizes)]
    kept, held, counts = split(documents(texts), fraction, seed)
    kept, held = list(kept), list(held)
    wanted = fraction * sum(map(len, texts))
    if len(kept) + len(held) == len(texts):
        assert sorted(kept + held) == sorted(texts)
    else:  # every document was too large: the tail of one is held out
        assert len(held) == 1
        assert [text for text in texts if text not in kept] in ([k + held[0]] for k in kept)
    assert (len(kept), len(held)) == counts
    assert kept
    assert any(held), "something is held out whenever that was asked for"
    assert sum(map(len, held)) <= max(1, 2 * wanted)
    again = split(documents(texts), fraction, seed)
    assert (list(again[0]), list(again[1])) == (kept, held)


def test_another_seed_holds_other_documents_out() -> None:
    texts = [str(i) * 10 for i in range(9)]
    assert len({tuple(split(documents(texts), 0.3, seed)[1]) for seed in range(20)}) > 5


def test_a_single_document_is_cut_at_a_line() -> None:
    text = "".join(f"line {i}\n" for i in range(100))
    kept, held, _ = split(documents([text]), 0.1, 0)
    (kept_text,), (held_text,) = kept, held
    assert kept_text + held_text == text
    assert kept_text.endswith("\n")
    assert 0.08 < len(held_text) / len(text) < 0.13


def test_unigram_cross_entropy_is_in_nats_a_token() -> None:
    train, held = np.array([7, 1, 0]), np.array([2, 1, 1])
    by_hand = -(2 * math.log(8 / 11) + math.log(2 / 11) + math.log(1 / 11)) / 4
    assert unigram_cross_entropy(train, held) == pytest.approx(by_hand, rel=1e-12)


def train_data(blocks: int, shape: Shape, rank: int, *, seed: int = 3, shuffle: bool = True) -> TrainData:
    tokens = np.repeat(np.arange(blocks), 4).astype(np.uint16)
    return TrainData(Blocks(tokens, 4), shape, rank, seed, shuffle)


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 30), st.booleans())
def test_an_epoch_draws_every_sequence_once_over_all_ranks(
    micro: int, parts: int, ranks: int, more: int, shuffle: bool
) -> None:
    shape = Shape(micro, parts, ranks)
    count = shape.total + more
    drawn: list[int] = []
    ends = set()
    for rank in range(ranks):
        data, position = train_data(count, shape, rank, shuffle=shuffle), Position()
        for _ in range(data.steps_per_epoch):
            batches, position = data.step(position)
            assert [tuple(b.shape) for b in batches] == [(micro, 4)] * parts
            drawn += [int(row[0]) for b in batches for row in b]
        ends.add(position)
    assert len(drawn) == len(set(drawn)) == count // shape.total * shape.total
    assert len(ends) == 1
    assert ends.pop().epoch == 0


def test_epochs_differ_and_positions_can_be_sought() -> None:
    data = train_data(20, Shape(2, 1, 1), 0)
    position, seen, places = Position(), [], []
    for _ in range(25):
        places.append(position)
        batches, position = data.step(position)
        seen.append(batches[0][:, 0].tolist())
    assert seen[:10] != seen[10:20]
    assert sorted(chain(*seen[:10])) == sorted(chain(*seen[10:20])) == list(range(20))
    assert [data.step(place)[0][0][:, 0].tolist() for place in places] == seen
    assert train_data(20, Shape(2, 1, 1), 0).step(places[12])[0][0][:, 0].tolist() == seen[12]
    assert position == Position(2, 10)


def test_a_rest_that_is_no_whole_batch_is_dropped() -> None:
    data = train_data(7, Shape(1, 1, 3), 0)
    _, second = data.step(Position(0, 3))
    assert second == Position(0, 6)
    assert data.step(second)[1] == Position(1, 3)


def test_without_shuffling_the_order_is_that_of_the_file() -> None:
    data = train_data(6, Shape(2, 1, 1), 0, shuffle=False)
    assert data.step(Position(1, 2))[0][0][:, 0].tolist() == [2, 3]


@settings(deadline=None)
@given(st.integers(1, 23), st.integers(1, 5), st.integers(1, 4))
def test_evaluation_sees_every_sequence_once_in_equally_many_batches(count: int, micro: int, ranks: int) -> None:
    blocks = Blocks(np.repeat(np.arange(count), 3).astype(np.uint16), 3)
    seen: list[int] = []
    numbers = set()
    for rank in range(ranks):
        batches = list(EvalData(blocks, micro, rank, ranks).batches(None))
        numbers.add(len(batches))
        for ids, labels in batches:
            assert ids.shape == labels.shape == (micro, 3)
            seen += [int(row[0]) for row in labels if row[0] != IGNORED]
    assert sorted(seen) == list(range(count))
    assert len(numbers) == 1


def prepared(train: int, held: int) -> Prepared:
    return Prepared(train, held, 1, 1, None, "")


def test_too_little_text_is_refused_with_the_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "train.npy", np.zeros(70, dtype=np.uint16))
    np.save(tmp_path / "eval.npy", np.zeros(5, dtype=np.uint16))
    with pytest.raises(Refused) as refused:
        open_train(run(max_length=10), tmp_path, prepared(70, 5), Shape(2, 2, 2), 0)
    assert "70 tokens, 7 sequences of 10, a step needs 8" in refused.value.findings[0].message
    with pytest.raises(Refused) as refused:
        open_eval(run(max_length=10), tmp_path, prepared(70, 5), Shape(2, 2, 2), 0)
    assert "5 tokens" in refused.value.findings[0].message
    assert open_eval(run(max_length=10), tmp_path, prepared(70, 0), Shape(2, 2, 2), 0) is None


@pytest.mark.parametrize(("data", "gate"), [({}, "MD117"), ({"train": "EMPTY"}, "MD114")])
def test_no_text_is_refused(tmp_path: Path, data: dict[str, str], gate: str) -> None:
    (tmp_path / "empty.txt").write_text("")
    given_data = {k: str(tmp_path / "empty.txt") for k in data}
    with pytest.raises(Refused) as refused:
        prepare(run(**given_data), TOKENIZER, tmp_path / "data")
    assert refused.value.findings[0].gate == gate
