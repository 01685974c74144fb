# SPDX-License-Identifier: Apache-2.0
"""Rows drawn ahead are the rows that a step would have drawn."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from harness.runtime.dataset.batch_prefetch import BatchPrefetcher
from harness.runtime.dataset.sampler import TrainData
from harness.runtime.dataset.token_dataset import BlockDataset, TokenDataset
from harness.runtime.micro_batch import BatchGeometry, StepBatch
from harness.runtime.train_state import DataPosition

SHAPE = BatchGeometry(2, 2, 1)


@dataclass
class Watched:
    """Training data that says who drew what."""

    train: TrainData
    broken_at: DataPosition | None = None

    def __post_init__(self) -> None:
        self.drawn: list[tuple[DataPosition, str]] = []
        self.told = threading.Semaphore(0)

    def batch_at(self, position: DataPosition) -> StepBatch:
        self.drawn.append((position, threading.current_thread().name))
        try:
            if position == self.broken_at:
                raise OSError("the disk is gone")
            return self.train.batch_at(position)
        finally:
            self.told.release()


@pytest.fixture
def data() -> TrainData:
    return rows()


def rows() -> TrainData:
    tokens = np.repeat(np.arange(22), 4).astype(np.uint16)
    return TrainData(TokenDataset((BlockDataset(tokens, 4),), 4), SHAPE, 0, 3, True)


def ids(drawn: StepBatch) -> list[list[int]]:
    return [batch.input_ids[:, 0].tolist() for batch in drawn.micro_batches]


def ahead(broken_at: DataPosition | None = None) -> tuple[BatchPrefetcher, Watched]:
    watched = Watched(rows(), broken_at)  # a thread of its own has data of its own
    return BatchPrefetcher(watched, torch.device("cpu")), watched  # type: ignore[arg-type]


def test_the_rows_are_those_that_each_step_would_have_drawn(data: TrainData) -> None:
    drawing, _ = ahead()
    position = DataPosition()
    for _ in range(3 * data.steps_per_epoch):
        drawn, alone = drawing.next_batch(position), data.batch_at(position)
        assert ids(drawn) == ids(alone)
        assert (drawn.next_position, drawn.num_tokens, drawn.num_targets) == (
            alone.next_position,
            alone.num_tokens,
            alone.num_targets,
        )
        position = drawn.next_position
    assert position.epoch == 2


def test_the_next_step_is_drawn_without_being_asked_for() -> None:
    drawing, watched = ahead()
    after = drawing.next_batch(DataPosition()).next_position
    for _ in range(2):
        assert watched.told.acquire(timeout=30)
    assert [position for position, _ in watched.drawn] == [DataPosition(), after]
    assert threading.current_thread().name not in {name for _, name in watched.drawn}


def test_after_the_last_step_nothing_is_drawn() -> None:
    drawing, watched = ahead()
    after = drawing.next_batch(DataPosition(), prefetch=False).next_position
    assert watched.told.acquire(timeout=30)
    assert [position for position, _ in watched.drawn] == [DataPosition()]
    assert not watched.told.acquire(timeout=0.2)
    drawing.next_batch(after, prefetch=False)
    assert len(watched.drawn) == 2


def test_another_position_than_the_next_is_drawn_too(data: TrainData) -> None:
    drawing, _ = ahead()
    drawing.next_batch(DataPosition())
    assert ids(drawing.next_batch(DataPosition(4, 8))) == ids(data.batch_at(DataPosition(4, 8)))
    assert ids(drawing.next_batch(DataPosition(4, 8))) == ids(data.batch_at(DataPosition(4, 8)))


def test_what_drawing_raises_is_raised_by_the_step_that_needs_it() -> None:
    drawing, _ = ahead(broken_at=DataPosition(0, 4))
    after = drawing.next_batch(DataPosition()).next_position
    with pytest.raises(OSError, match="the disk is gone"):
        drawing.next_batch(after)


def test_a_closed_one_leaves_no_thread_and_can_go_on(data: TrainData) -> None:
    before = set(threading.enumerate())
    drawing, _ = ahead()
    after = drawing.next_batch(DataPosition()).next_position
    threads = set(threading.enumerate()) - before
    assert threads
    drawing.close()
    drawing.close()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert ids(drawing.next_batch(after)) == ids(data.batch_at(after))
    drawing.close()
