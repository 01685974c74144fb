"""Batches: which sequences of the token files this rank computes in which step.

A pure function of the position in the data, so that a resumed run goes on where the saved one stood; it has no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from harness.errors import Refused
from harness.plan.run import Run
from harness.runtime.prepare import Prepared, prepare
from harness.runtime.ranks import Ranks
from harness.runtime.refusals import refusal
from harness.runtime.state import Position

IGNORED = -100  # the label that torch's cross entropy leaves out


@dataclass(frozen=True, slots=True)
class Shape:
    """The batch in sequences: `micro` a rank at once, `accumulation` times a step, on `ranks` data-parallel ranks."""

    micro: int
    accumulation: int
    ranks: int

    @property
    def total(self) -> int:
        """Sequences a step, over all ranks."""
        return self.micro * self.accumulation * self.ranks


@dataclass(frozen=True)
class Blocks:
    """A flat token file seen as sequences of `length` tokens; a shorter rest at the end is not seen."""

    tokens: np.ndarray
    length: int

    @staticmethod
    def open(path: Path, length: int) -> Blocks:
        """Map a file; pages are read when they are used."""
        return Blocks(np.load(path, mmap_mode="r"), length)

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def rows(self, indices: np.ndarray) -> torch.Tensor:
        """int64, (len(indices), length)."""
        starts = np.asarray(indices, dtype=np.int64)[:, None] * self.length
        return torch.from_numpy(self.tokens[starts + np.arange(self.length)].astype(np.int64))


@dataclass(frozen=True)
class TrainData:
    """The training sequences in the order in which they are drawn."""

    blocks: Blocks
    shape: Shape
    rank: int
    seed: int
    shuffle: bool

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches; the rest of an epoch is dropped, and falls elsewhere in the next order."""
        return len(self.blocks) // self.shape.total

    def step(self, position: Position) -> tuple[list[torch.Tensor], Position]:
        """This rank's micro-batches of the global batch at `position`, each (micro, length), and where the next one is.

        The global batch is the next `total` sequences of the epoch's order; micro-batch m of rank r is the r-th slice
        of its m-th part.
        """
        if position.offset + self.shape.total > len(self.blocks):
            position = Position(position.epoch + 1, 0)
        order = _order(len(self.blocks), self.seed if self.shuffle else None, position.epoch)
        drawn = order[position.offset : position.offset + self.shape.total]
        mine = drawn.reshape(self.shape.accumulation, self.shape.ranks, self.shape.micro)[:, self.rank]
        return [self.blocks.rows(part) for part in mine], Position(position.epoch, position.offset + self.shape.total)


@lru_cache(maxsize=2)
def _order(count: int, seed: int | None, epoch: int) -> np.ndarray:
    """The epoch's permutation: it depends on the seed and the epoch alone. seed None: as stored."""
    return np.arange(count) if seed is None else np.random.default_rng([seed, epoch]).permutation(count)


@dataclass(frozen=True)
class EvalData:
    """The held-out sequences: each is computed once, on one rank."""

    blocks: Blocks
    micro: int
    rank: int
    ranks: int

    def batches(self, limit: int | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(ids, labels) of this rank, both (micro, length); the same number of batches on every rank.

        ZeRO-3 gathers weights in every forward, so that a rank with fewer sequences must compute too: rows that it
        lacks repeat its first sequence with labels that count for nothing.
        """
        mine = np.arange(self.rank, len(self.blocks), self.ranks)
        longest = -(-len(self.blocks) // self.ranks)
        count = -(-longest // self.micro)
        for i in range(count if limit is None else min(count, limit)):
            part = mine[i * self.micro : (i + 1) * self.micro]
            rows = np.concatenate([part, np.zeros(self.micro - len(part), dtype=part.dtype)])
            ids = self.blocks.rows(rows)
            labels = ids.clone()
            labels[len(part) :] = IGNORED
            yield ids, labels


def prepare_together(run: Run, tokenizer: object, folder: Path, ranks: Ranks) -> Prepared:
    """Have the token files made once a node, by rank 0 first: on a shared disk the other nodes find them done.

    What one rank refuses, all refuse.
    """
    for turn in (ranks.is_first, ranks.is_first_here and not ranks.is_first):
        refused = None
        if turn and Prepared.read(folder) is None:
            try:
                prepare(run, tokenizer, folder)
            except Refused as error:
                refused = error
        ranks.wait_for_hours()
        ranks.agree(refused)
    prepared = Prepared.read(folder)
    if prepared is None:
        raise FileNotFoundError(folder / "meta.json")
    if len({p.sha256 for p in ranks.gather(prepared)}) > 1:
        raise refusal(
            "MD119", "the hosts read different training text", key="data.train", fix="give every host the same files"
        )
    return prepared


def open_train(run: Run, folder: Path, prepared: Prepared, shape: Shape, rank: int) -> TrainData:
    """Map the training tokens. Raises Refused (MD115) when they do not fill one global batch."""
    data = run.spec.data
    blocks = Blocks.open(folder / "train.npy", data.max_length)
    if len(blocks) < shape.total:
        raise refusal(
            "MD115",
            f"the training text has {prepared.train_tokens} tokens, {len(blocks)} sequences of {data.max_length}, "
            f"a step needs {shape.total} sequences",
            key="data.train",
            fix="give more text, or set a shorter `data.max_length` or a smaller `train.global_batch_size`",
        )
    return TrainData(blocks, shape, rank, run.spec.train.seed, data.shuffle)


def open_eval(run: Run, folder: Path, prepared: Prepared, shape: Shape, rank: int) -> EvalData | None:
    """Map the held-out tokens; None when there are none. Raises Refused (MD115) when they are less than a sequence."""
    if not prepared.eval_tokens:
        return None
    data = run.spec.data
    blocks = Blocks.open(folder / "eval.npy", data.max_length)
    if not len(blocks):
        raise refusal(
            "MD115",
            f"the held-out text has {prepared.eval_tokens} tokens, less than one sequence of {data.max_length}",
            key="data.eval_fraction",
            fix="give more text, or set a shorter `data.max_length` or `data.eval_fraction: 0.0`",
        )
    return EvalData(blocks, run.spec.eval.per_device_eval_batch_size or shape.micro, rank, shape.ranks)
