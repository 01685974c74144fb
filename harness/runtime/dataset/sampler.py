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

from harness.errors import UserError
from harness.facts.packing_support import MIXES_PACKED_DOCUMENTS
from harness.file_io import replace_file
from harness.plan.resolved_run import ResolvedRun
from harness.runtime.dataset.bad_records import SKIPPED_FILE
from harness.runtime.dataset.cache import prepare_or_reuse, read_cache
from harness.runtime.dataset.preparation import META_FILE, PreparedData
from harness.runtime.dataset.sampling_order import group_by_length, mix_sources, shuffle_rows
from harness.runtime.dataset.token_dataset import BlockDataset, TokenDataset, open_token_dataset
from harness.runtime.micro_batch import BatchGeometry, MicroBatch, StepBatch
from harness.runtime.train_state import DataPosition
from harness.runtime.user_errors import user_error

if TYPE_CHECKING:  # it imports DeepSpeed, and `harness data` needs none
    from harness.runtime.distributed import Distributed

__all__ = [
    "BlockDataset",
    "EvalData",
    "TrainData",
    "check_packing",
    "open_eval_data",
    "open_train_data",
    "prepare_on_node_leaders",
]


@dataclass(frozen=True)
class TrainData:
    """The training rows in the order in which they are drawn."""

    dataset: TokenDataset
    geometry: BatchGeometry
    data_parallel_rank: int
    seed: int
    shuffle: bool
    group_by_length: bool = True

    @cached_property
    def rows_per_epoch(self) -> int:
        """All rows; with weights as many as there are until the first source is used up."""
        return sum(self._rows_per_source) if self._rows_per_source else len(self.dataset)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Whole global batches; the rest of an epoch is dropped, and falls elsewhere in the next order."""
        return self.rows_per_epoch // self.geometry.global_batch_size

    def batch_at(self, position: DataPosition) -> StepBatch:
        """The global batch at `position`.

        The global batch is the next `total` rows of the epoch's order; micro-batch m of rank r is the r-th slice
        of its m-th part.
        """
        if position.offset + self.geometry.global_batch_size > self.rows_per_epoch:
            position = DataPosition(position.epoch + 1, 0)
        # A copy, or what is told about a step would keep the order of an epoch that is over.
        drawn = self._epoch_order(position.epoch)[
            position.offset : position.offset + self.geometry.global_batch_size
        ].copy()
        rows = drawn.reshape(
            self.geometry.accumulation_steps, self.geometry.data_parallel_size, self.geometry.micro_batch_size
        )
        return StepBatch(
            [self.dataset.make_batch(part) for part in rows[:, self.data_parallel_rank]],
            num_targets=int(self.dataset.num_targets[drawn].sum()),
            num_tokens=int(self.dataset.lengths[drawn].sum()),
            next_position=DataPosition(position.epoch, position.offset + self.geometry.global_batch_size),
            row_indices=rows,
        )

    @cached_property
    def _rows_per_source(self) -> tuple[int, ...] | None:
        """Rows of each group in an epoch, where they have weights."""
        weights = self.dataset.weights
        if weights is None:
            return None
        sizes = [len(group) for group in self.dataset.sources]
        most = min(size / weight for size, weight in zip(sizes, weights, strict=True))
        return tuple(min(size, max(1, round(most * w))) for size, w in zip(sizes, weights, strict=True))

    def _epoch_order(self, epoch: int) -> np.ndarray:
        """The rows of an epoch in order: it depends on the seed and the epoch alone."""
        order = self._order_cache.get(epoch)
        if order is None:
            self._order_cache.clear()  # a large corpus has a large order: one is kept
            order = self._order_cache[epoch] = self._build_order(epoch)
        return order

    @cached_property
    def _order_cache(self) -> dict[int, np.ndarray]:
        return {}

    def _build_order(self, epoch: int) -> np.ndarray:
        seed = self.seed if self.shuffle else None
        if self._rows_per_source:
            order = mix_sources([len(g) for g in self.dataset.sources], self._rows_per_source, seed, epoch)
        else:
            order = shuffle_rows(len(self.dataset), seed, epoch)
        uneven = not self.dataset.is_plain_stream and not self.dataset.is_packed
        if uneven and self.shuffle and self.group_by_length:
            wave = self.geometry.micro_batch_size * self.geometry.data_parallel_size
            return group_by_length(
                order, self.dataset.lengths, wave, self.geometry.global_batch_size, [self.seed, epoch]
            )
        return order


@dataclass(frozen=True)
class EvalData:
    """The held-out rows: each is computed once, on one rank."""

    dataset: TokenDataset
    micro_batch_size: int
    data_parallel_rank: int
    data_parallel_size: int

    def batches(self, max_batches: int | None) -> Iterator[MicroBatch]:
        """This rank's batches; as many on every rank.

        ZeRO-3 gathers weights in every forward, so that a rank with fewer rows must compute too: rows that it
        lacks repeat its first row with labels that count for nothing.
        """
        total = len(self.dataset)
        chosen = np.arange(
            total if max_batches is None else min(total, max_batches * self.micro_batch_size * self.data_parallel_size)
        )
        if not self.dataset.is_plain_stream and not self.dataset.is_packed:
            chosen = chosen[np.argsort(self.dataset.lengths[chosen], kind="stable")]
        mine = chosen[self.data_parallel_rank :: self.data_parallel_size]
        longest = -(-len(chosen) // self.data_parallel_size)
        for i in range(-(-longest // self.micro_batch_size)):
            part = mine[i * self.micro_batch_size : (i + 1) * self.micro_batch_size]
            rows = np.concatenate([part, np.full(self.micro_batch_size - len(part), chosen[0], dtype=chosen.dtype)])
            yield self.dataset.make_batch(rows, num_used=len(part))


def check_packing(run: ResolvedRun, config: Any) -> None:
    """Refuse (MD128) packing for models whose attention is known to run across the documents of a row."""
    if run.spec.data.packing and config.model_type in MIXES_PACKED_DOCUMENTS:
        raise user_error(
            "MD128",
            f"models of type `{config.model_type}` attend across the documents of a packed row",
            key="data.packing",
            fix="set `data.packing: false`",
        )


def prepare_on_node_leaders(
    run: ResolvedRun, tokenizer: object, folder: Path, distributed: Distributed
) -> tuple[PreparedData, Path]:
    """Have the token files made once a node, by rank 0 first: on a shared disk the other nodes find them done.

    Returns what they hold and the folder of this node's cache that they are in; `folder`, of the run directory, gets
    links to them. What one rank refuses, all refuse.
    """
    made: str | None = None
    for turn in (distributed.is_main_process, distributed.is_local_main_process and not distributed.is_main_process):
        refused = None
        if turn:
            try:
                place, _, _ = prepare_or_reuse(run, tokenizer)
                made = str(place.absolute())
            except UserError as error:
                refused = error
        distributed.long_barrier()
        distributed.raise_everywhere(refused)
    everyone = distributed.all_gather_object(made)
    mine = next(
        name for name in reversed(everyone[: distributed.rank + 1]) if name is not None
    )  # the first of this node
    prepared = read_cache(Path(mine))
    if prepared is None:
        raise FileNotFoundError(f"{mine}/{META_FILE}")
    if len({p.sha256 for p in distributed.all_gather_object(prepared)}) > 1:
        raise user_error(
            "MD119", "the hosts read different training text", key="data.train", fix="give every host the same files"
        )
    if distributed.is_main_process:
        _link_cache(folder, Path(mine), prepared)
        _report_skipped_records(prepared, Path(mine))
    return prepared, Path(mine)


def _report_skipped_records(prepared: PreparedData, place: Path) -> None:
    """In every run, also in one that found the data prepared."""
    if prepared.skipped:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(prepared.skipped.items()))
        print(f"data: records left out: {kinds}, listed in {place / SKIPPED_FILE}", file=sys.stderr, flush=True)  # noqa: T201


def _link_cache(folder: Path, place: Path, prepared: PreparedData) -> None:
    """What the run directory keeps of its data: what it was, and links to where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in place.iterdir():
        link = folder / path.name
        if path.name != META_FILE and not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(path)
    body: dict[str, Any] = {**asdict(prepared), "cache": str(place)}
    replace_file(folder / META_FILE, json.dumps(body) + "\n")


def open_train_data(
    run: ResolvedRun, folder: Path, prepared: PreparedData, geometry: BatchGeometry, data_parallel_rank: int
) -> TrainData:
    """Map the training rows. Raises Refused (MD115) when they do not fill one global batch."""
    data = run.spec.data
    sequences = _open_dataset(run, folder, prepared, "train")
    train = TrainData(sequences, geometry, data_parallel_rank, run.spec.train.seed, data.shuffle, data.group_by_length)
    if not train.steps_per_epoch:
        raise user_error(
            "MD115",
            f"the training text has {prepared.train_tokens} tokens, {train.rows_per_epoch} sequences of "
            f"{data.max_length}, a step needs {geometry.global_batch_size} sequences",
            key="data.train",
            fix="give more text, or set a shorter `data.max_length` or a smaller `train.global_batch_size`",
        )
    return train


def open_eval_data(
    run: ResolvedRun, folder: Path, prepared: PreparedData, geometry: BatchGeometry, data_parallel_rank: int
) -> EvalData | None:
    """Map the held-out rows; None when there are none. Raises Refused (MD115) when they are less than a sequence."""
    if not prepared.eval_tokens:
        return None
    data = run.spec.data
    sequences = _open_dataset(run, folder, prepared, "eval")
    if not len(sequences):
        raise user_error(
            "MD115",
            f"the held-out text has {prepared.eval_tokens} tokens, less than one sequence of {data.max_length}",
            key="data.eval_fraction",
            fix="give more text, or set a shorter `data.max_length` or `data.eval_fraction: 0.0`",
        )
    return EvalData(
        sequences,
        run.spec.eval.per_device_eval_batch_size or geometry.micro_batch_size,
        data_parallel_rank,
        geometry.data_parallel_size,
    )


def _open_dataset(run: ResolvedRun, folder: Path, prepared: PreparedData, role: str) -> TokenDataset:
    data = run.spec.data
    multiple = data.pad_to_multiple_of or run.spec.parallel.sequence_parallel_size or 1
    parts = prepared.train if role == "train" else prepared.eval
    return open_token_dataset(folder, parts, data.max_length, prepared.pad, multiple)
