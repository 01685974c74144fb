"""Batches: which rows of the token files this rank computes in which step.

A pure function of the position in the data, so that a resumed run goes on where the saved one stood; it has no state.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import Refused
from harness.facts.packing import MIXES
from harness.files import replace_file
from harness.plan.run import Run
from harness.runtime.batch import IGNORED, MicroBatch
from harness.runtime.corpus.cache import cached, read
from harness.runtime.corpus.ledger import LIST
from harness.runtime.corpus.prepare import META, Prepared
from harness.runtime.ordering import by_length, mixed, shuffled
from harness.runtime.refusals import refusal
from harness.runtime.sequences import Blocks, Sequences, open_sequences
from harness.runtime.state import Position

if TYPE_CHECKING:  # it imports DeepSpeed, and `harness data` needs none
    from harness.runtime.ranks import Ranks

__all__ = [
    "IGNORED",
    "Blocks",
    "Drawn",
    "EvalData",
    "Shape",
    "TrainData",
    "check_packing",
    "open_eval",
    "open_train",
    "prepare_together",
]


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


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step computes: this rank's micro-batches, what the global batch holds, and where the next one is.

    `predicted` counts over all data-parallel ranks the tokens that are predicted, `tokens` all that are not padding;
    `rows`, (accumulation, data-parallel ranks, micro-batch), are the sequences of all of them.
    """

    micro_batches: list[MicroBatch]
    predicted: int
    tokens: int
    position: Position
    rows: np.ndarray


@dataclass(frozen=True)
class TrainData:
    """The training rows in the order in which they are drawn."""

    sequences: Sequences
    shape: Shape
    rank: int
    seed: int
    shuffle: bool
    by_length: bool = True

    @cached_property
    def rows_per_epoch(self) -> int:
        """All rows; with weights as many as there are until the first source is used up."""
        return sum(self._shares) if self._shares else len(self.sequences)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Whole global batches; the rest of an epoch is dropped, and falls elsewhere in the next order."""
        return self.rows_per_epoch // self.shape.total

    def step(self, position: Position) -> Drawn:
        """The global batch at `position`.

        The global batch is the next `total` rows of the epoch's order; micro-batch m of rank r is the r-th slice
        of its m-th part.
        """
        if position.offset + self.shape.total > self.rows_per_epoch:
            position = Position(position.epoch + 1, 0)
        # A copy, or what is told about a step would keep the order of an epoch that is over.
        drawn = self._order(position.epoch)[position.offset : position.offset + self.shape.total].copy()
        rows = drawn.reshape(self.shape.accumulation, self.shape.ranks, self.shape.micro)
        return Drawn(
            [self.sequences.batch(part) for part in rows[:, self.rank]],
            predicted=int(self.sequences.counts[drawn].sum()),
            tokens=int(self.sequences.lengths[drawn].sum()),
            position=Position(position.epoch, position.offset + self.shape.total),
            rows=rows,
        )

    @cached_property
    def _shares(self) -> tuple[int, ...] | None:
        """Rows of each group in an epoch, where they have weights."""
        weights = self.sequences.weights
        if weights is None:
            return None
        sizes = [len(group) for group in self.sequences.groups]
        most = min(size / weight for size, weight in zip(sizes, weights, strict=True))
        return tuple(min(size, max(1, round(most * w))) for size, w in zip(sizes, weights, strict=True))

    def _order(self, epoch: int) -> np.ndarray:
        """The rows of an epoch in order: it depends on the seed and the epoch alone."""
        order = self._orders.get(epoch)
        if order is None:
            self._orders.clear()  # a large corpus has a large order: one is kept
            order = self._orders[epoch] = self._make_order(epoch)
        return order

    @cached_property
    def _orders(self) -> dict[int, np.ndarray]:
        return {}

    def _make_order(self, epoch: int) -> np.ndarray:
        seed = self.seed if self.shuffle else None
        if self._shares:
            order = mixed([len(g) for g in self.sequences.groups], self._shares, seed, epoch)
        else:
            order = shuffled(len(self.sequences), seed, epoch)
        uneven = not self.sequences.plain and not self.sequences.packed
        if uneven and self.shuffle and self.by_length:
            wave = self.shape.micro * self.shape.ranks
            return by_length(order, self.sequences.lengths, wave, self.shape.total, [self.seed, epoch])
        return order


@dataclass(frozen=True)
class EvalData:
    """The held-out rows: each is computed once, on one rank."""

    sequences: Sequences
    micro: int
    rank: int
    ranks: int

    def batches(self, limit: int | None) -> Iterator[MicroBatch]:
        """This rank's batches; as many on every rank.

        ZeRO-3 gathers weights in every forward, so that a rank with fewer rows must compute too: rows that it
        lacks repeat its first row with labels that count for nothing.
        """
        total = len(self.sequences)
        chosen = np.arange(total if limit is None else min(total, limit * self.micro * self.ranks))
        if not self.sequences.plain and not self.sequences.packed:
            chosen = chosen[np.argsort(self.sequences.lengths[chosen], kind="stable")]
        mine = chosen[self.rank :: self.ranks]
        longest = -(-len(chosen) // self.ranks)
        for i in range(-(-longest // self.micro)):
            part = mine[i * self.micro : (i + 1) * self.micro]
            rows = np.concatenate([part, np.full(self.micro - len(part), chosen[0], dtype=chosen.dtype)])
            yield self.sequences.batch(rows, used=len(part))


def check_packing(run: Run, config: Any) -> None:
    """Refuse (MD128) packing for models whose attention is known to run across the documents of a row."""
    if run.spec.data.packing and config.model_type in MIXES:
        raise refusal(
            "MD128",
            f"models of type `{config.model_type}` attend across the documents of a packed row",
            key="data.packing",
            fix="set `data.packing: false`",
        )


def prepare_together(run: Run, tokenizer: object, folder: Path, ranks: Ranks) -> tuple[Prepared, Path]:
    """Have the token files made once a node, by rank 0 first: on a shared disk the other nodes find them done.

    Returns what they hold and the folder of this node's cache that they are in; `folder`, of the run directory, gets
    links to them. What one rank refuses, all refuse.
    """
    made: str | None = None
    for turn in (ranks.is_first, ranks.is_first_here and not ranks.is_first):
        refused = None
        if turn:
            try:
                place, _, _ = cached(run, tokenizer)
                made = str(place.absolute())
            except Refused as error:
                refused = error
        ranks.wait_for_hours()
        ranks.agree(refused)
    everyone = ranks.gather(made)
    mine = next(name for name in reversed(everyone[: ranks.rank + 1]) if name is not None)  # the first of this node
    prepared = read(Path(mine))
    if prepared is None:
        raise FileNotFoundError(f"{mine}/{META}")
    if len({p.sha256 for p in ranks.gather(prepared)}) > 1:
        raise refusal(
            "MD119", "the hosts read different training text", key="data.train", fix="give every host the same files"
        )
    if ranks.is_first:
        _point_to(folder, Path(mine), prepared)
        _say_what_is_left_out(prepared, Path(mine))
    return prepared, Path(mine)


def _say_what_is_left_out(prepared: Prepared, place: Path) -> None:
    """In every run, also in one that found the data prepared."""
    if prepared.skipped:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(prepared.skipped.items()))
        print(f"data: records left out: {kinds}, listed in {place / LIST}", file=sys.stderr, flush=True)  # noqa: T201


def _point_to(folder: Path, place: Path, prepared: Prepared) -> None:
    """What the run directory keeps of its data: what it was, and links to where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in place.iterdir():
        link = folder / path.name
        if path.name != META and not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(path)
    body: dict[str, Any] = {**asdict(prepared), "cache": str(place)}
    replace_file(folder / META, json.dumps(body) + "\n")


def open_train(run: Run, folder: Path, prepared: Prepared, shape: Shape, rank: int) -> TrainData:
    """Map the training rows. Raises Refused (MD115) when they do not fill one global batch."""
    data = run.spec.data
    sequences = _open(run, folder, prepared, "train")
    train = TrainData(sequences, shape, rank, run.spec.train.seed, data.shuffle, data.group_by_length)
    if not train.steps_per_epoch:
        raise refusal(
            "MD115",
            f"the training text has {prepared.train_tokens} tokens, {train.rows_per_epoch} sequences of "
            f"{data.max_length}, a step needs {shape.total} sequences",
            key="data.train",
            fix="give more text, or set a shorter `data.max_length` or a smaller `train.global_batch_size`",
        )
    return train


def open_eval(run: Run, folder: Path, prepared: Prepared, shape: Shape, rank: int) -> EvalData | None:
    """Map the held-out rows; None when there are none. Raises Refused (MD115) when they are less than a sequence."""
    if not prepared.eval_tokens:
        return None
    data = run.spec.data
    sequences = _open(run, folder, prepared, "eval")
    if not len(sequences):
        raise refusal(
            "MD115",
            f"the held-out text has {prepared.eval_tokens} tokens, less than one sequence of {data.max_length}",
            key="data.eval_fraction",
            fix="give more text, or set a shorter `data.max_length` or `data.eval_fraction: 0.0`",
        )
    return EvalData(sequences, run.spec.eval.per_device_eval_batch_size or shape.micro, rank, shape.ranks)


def _open(run: Run, folder: Path, prepared: Prepared, role: str) -> Sequences:
    data = run.spec.data
    multiple = data.pad_to_multiple_of or run.spec.parallel.sequence_parallel_size or 1
    parts = prepared.train if role == "train" else prepared.eval
    return open_sequences(folder, parts, data.max_length, prepared.pad, multiple)
