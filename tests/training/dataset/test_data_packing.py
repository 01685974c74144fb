# SPDX-License-Identifier: Apache-2.0
"""Rows of several documents: each document once, none across rows, and with the loss that it has alone."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from harness.runtime.dataset.bin_packing import pack_best_fit
from harness.runtime.dataset.sampler import EvalData, TrainData
from harness.runtime.dataset.token_rows import TokenRecords, write_rows
from harness.runtime.micro_batch import IGNORE_INDEX, BatchGeometry
from harness.runtime.train_state import DataPosition
from tests.support.training.data_helpers import chat, lines, prepared, sequences

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "qwen2": {"num_key_value_heads": 2},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4},
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "resid_pdrop": 0,
        "embd_pdrop": 0,
        "attn_pdrop": 0,
    },
}


@settings(deadline=None)
@given(st.lists(st.integers(1, 64), max_size=300), st.integers(64, 200))
def test_each_document_is_in_one_row_and_none_is_across(lengths: list[int], capacity: int) -> None:
    given_lengths = np.array(lengths, dtype=np.int64)
    order, edges = pack_best_fit(given_lengths, capacity)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    fills = [int(given_lengths[order[a:b]].sum()) for a, b in pairwise(edges)]
    assert all(0 < fill <= capacity for fill in fills)
    # any two rows together are more than one: else best fit would have joined them
    assert sorted(fills)[0] + sorted(fills)[1] > capacity if len(fills) > 1 else True


def test_a_document_that_fits_nowhere_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        pack_best_fit(np.array([3, 9]), 8)


def test_chats_fill_almost_all_positions() -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.0, 0.8, 20000).astype(np.int64), 2, 1024)
    _, edges = pack_best_fit(lengths, 1024)
    assert lengths.sum() / ((len(edges) - 1) * 1024) > 0.99


def conversations(folder: Path, count: int = 40) -> str:
    rng = np.random.default_rng(1)
    return lines(folder / "chats.jsonl", [chat(f"q{i}", "abc " * int(rng.integers(1, 9))) for i in range(count)])


def test_what_is_packed_is_what_was_there(tmp_path: Path) -> None:
    file = conversations(tmp_path)
    one = sequences(tmp_path, train=file, max_length=128)
    several = sequences(tmp_path, train=file, max_length=128, packing=True)
    alone = sorted(tuple(ids.tolist()) for ids, _ in one.iter_examples(np.arange(len(one))))
    split = []
    for i in range(len(several)):
        ids, _, begins = several.sources[0].row(i)
        assert len(ids) <= 128
        split += [tuple(piece.tolist()) for piece in np.split(ids.astype(np.int64), begins[1:])]
    assert sorted(split) == alone
    assert several.num_targets.sum() == one.num_targets.sum()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_document_has_the_loss_that_it_has_alone(tmp_path: Path, family: str, attention: str) -> None:
    config = AutoConfig.for_model(family, vocab_size=320, max_position_embeddings=128, **{**SIZES, **FAMILIES[family]})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()
    rows = sequences(tmp_path, train=conversations(tmp_path), max_length=128, packing=True)
    batch = rows.make_batch(np.arange(3))
    assert batch.attention_mask is None
    assert batch.position_ids is not None
    with torch.no_grad():
        packed = _losses(model(**batch.to_model_inputs(torch.device("cpu")), use_cache=False).logits, batch.labels)
        for r in range(3):
            ids, trained, begins = rows.sources[0].row(r)
            assert len(begins) > 1, "a row of several documents is what is tested"
            for first, last in zip(begins, [*begins[1:], len(ids)], strict=True):
                tokens = torch.from_numpy(ids[first:last].astype(np.int64))[None]
                labels = torch.where(torch.from_numpy(np.array(trained[first:last])), tokens, IGNORE_INDEX)  # type: ignore[index]
                alone = _losses(model(input_ids=tokens, use_cache=False).logits, labels)
                torch.testing.assert_close(packed[r : r + 1, first : last - 1], alone, rtol=1e-5, atol=1e-6)


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(rows, length - 1); 0 where nothing counts."""
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none", ignore_index=IGNORE_INDEX
    )


def drawn(folder: Path, file: str, shape: BatchGeometry, **data: Any) -> list[TrainData]:
    rows = sequences(folder, train=file, **data)
    return [TrainData(rows, shape, rank, 3, True) for rank in range(shape.data_parallel_size)]


@pytest.mark.parametrize("packing", [False, True])
def test_every_rank_knows_what_the_whole_global_batch_predicts(tmp_path: Path, packing: bool) -> None:
    shape = BatchGeometry(2, 2, 2)
    ranks = drawn(tmp_path, conversations(tmp_path, 60), shape, max_length=64, packing=packing)
    position = DataPosition()
    for _ in range(2 * ranks[0].steps_per_epoch):
        steps = [data.batch_at(position) for data in ranks]
        assert len({(s.num_targets, s.num_tokens, s.next_position) for s in steps}) == 1
        assert sum(batch.num_targets for s in steps for batch in s.micro_batches) == steps[0].num_targets
        position = steps[0].next_position


def test_a_resume_on_other_ranks_keeps_the_order_of_rows_by_length(tmp_path: Path) -> None:
    saved = drawn(tmp_path, conversations(tmp_path, 200), BatchGeometry(4, 1, 2), max_length=64)[0]
    (alone,) = drawn(tmp_path, str(tmp_path / "chats.jsonl"), BatchGeometry(4, 2, 1), max_length=64)
    position = DataPosition(1, 24)
    rows = saved.batch_at(position).row_indices.reshape(-1).tolist()
    assert alone.batch_at(position).row_indices.reshape(-1).tolist() != rows
    alone.keep_order(saved.order_geometry)
    assert alone.batch_at(position).row_indices.reshape(-1).tolist() == rows


def test_rows_of_like_length_are_computed_together_and_all_of_them(tmp_path: Path) -> None:
    shape = BatchGeometry(4, 1, 2)
    ranks = drawn(tmp_path, conversations(tmp_path, 200), shape, max_length=64)
    rows = ranks[0].dataset
    position, used, places, seen = DataPosition(), 0, 0, []
    while position.epoch == 0 and position.offset + shape.global_batch_size <= len(rows):
        for data in ranks:
            (batch,) = data.batch_at(position).micro_batches
            masks = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask
            assert (batch.attention_mask is None) == bool(masks.all())
            used, places = used + int(masks.sum()), places + batch.input_ids.numel()
            seen += [
                bytes(row[mask.bool()].clamp(max=255).tolist())
                for row, mask in zip(batch.input_ids, masks, strict=True)
            ]
        position = data.batch_at(position).next_position
    assert len(set(seen)) == len(seen) == 200
    assert used / places > 0.95
    middle = DataPosition(0, 5 * shape.global_batch_size)
    again = drawn(tmp_path, str(tmp_path / "chats.jsonl"), shape, max_length=64)[1]
    assert torch.equal(
        again.batch_at(middle).micro_batches[0].input_ids, ranks[1].batch_at(middle).micro_batches[0].input_ids
    )


def test_padding_is_to_a_multiple_and_counts_for_nothing(tmp_path: Path) -> None:
    from harness.runtime.dataset.token_dataset import open_token_dataset

    found, place = prepared(tmp_path, train=conversations(tmp_path), max_length=64)
    batch = open_token_dataset(place, found.train, 64, found.pad, pad_to_multiple_of=16).make_batch(np.arange(5))
    assert batch.input_ids.shape[1] % 16 == 0
    assert batch.attention_mask is not None
    assert (batch.labels[batch.attention_mask == 0] == IGNORE_INDEX).all()
    assert (batch.input_ids[batch.attention_mask == 0] == 257).all()


def test_evaluation_computes_every_row_once(tmp_path: Path) -> None:
    rows = sequences(tmp_path, train=conversations(tmp_path, 23), max_length=64)
    total = 0
    for rank in range(2):
        batches = list(EvalData(rows, 4, rank, 2).batches(None))
        assert len(batches) == 3
        total += sum(batch.num_targets for batch in batches)
    assert total == rows.num_targets.sum()


def test_a_mixture_draws_by_weight_and_comes_to_all_of_the_larger_source(tmp_path: Path) -> None:
    small = lines(tmp_path / "s.jsonl", [chat("s", f"{i:03}") for i in range(10)])
    large = lines(tmp_path / "l.jsonl", [chat("l", f"{i:03}") for i in range(60)])
    train = [{"path": small, "weight": 0.25}, {"path": large, "weight": 0.75, "format": "messages"}]
    (data,) = drawn(tmp_path, train, BatchGeometry(4, 1, 1), max_length=64)  # type: ignore[arg-type]
    assert data.rows_per_epoch == 40
    seen: list[list[int]] = []
    for epoch in range(2):
        order = data.epoch_order(epoch)
        assert (order < 10).sum() == 10
        seen.append([int(i) for i in order if i >= 10])
    assert len(set(seen[0])) == len(set(seen[1])) == 30
    assert sorted(seen[0] + seen[1]) == list(range(10, 70))


def test_text_and_chats_in_one_mixture(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("words " * 100)
    file = conversations(tmp_path, 10)
    found, _ = prepared(tmp_path, train=[str(tmp_path / "t.txt"), file], max_length=32)
    assert [(part.rows > 0, part.masked) for part in found.train] == [(False, False), (True, True)]
    (data,) = drawn(tmp_path, [str(tmp_path / "t.txt"), file], BatchGeometry(2, 1, 1), max_length=32)  # type: ignore[arg-type]
    assert len(data.dataset) == 601 // 32 + 10
    assert all(b.input_ids.shape[1] <= 32 for b in data.batch_at(DataPosition()).micro_batches)


def test_packed_text_is_cut_in_pieces_and_restarts(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in (70, 5, 9, 20)))
    rows = sequences(tmp_path, train=str(tmp_path / "t.jsonl"), max_length=32, packing=True)
    batch = rows.make_batch(np.arange(len(rows)))
    assert batch.position_ids is not None
    assert rows.lengths.sum() == 71 + 6 + 10 + 21
    assert (batch.position_ids == 0).sum() == 3 + 3 + (rows.lengths < 32).sum()
    assert (batch.labels[batch.position_ids == 0] == IGNORE_INDEX).all()


@pytest.mark.parametrize(("keeps_all", "rows"), [(False, 2), (True, 3)])
def test_a_row_of_one_token_stays_where_a_label_belongs_to_it(keeps_all: bool, rows: int, tmp_path: Path) -> None:
    lengths = np.array([2, 1, 2])
    records = TokenRecords(np.arange(5, dtype=np.uint32), None, lengths, lengths)
    counts = np.zeros(5, dtype=np.int64)
    path = tmp_path / "train.npy"
    stats = write_rows(records, np.arange(3), path, 8, counts, packing=False, keeps_all=keeps_all)
    assert stats.rows == rows
