# SPDX-License-Identifier: Apache-2.0
"""Sampling: the rows of the token files that this rank computes in each step, and their order.

The batch of a step is a pure function of the position in the data and has no state, so that a resume continues with the
rows that the saved run would have read next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from harness.run.resolved_run import ResolvedRun
from harness.runtime.dataset.example_dataset import ExampleDataset, TensorBatch
from harness.runtime.dataset.preference_dataset import PreferenceDataset
from harness.runtime.dataset.preparation import PreparedData
from harness.runtime.dataset.token_dataset import TokenDataset, open_token_dataset
from harness.runtime.micro_batch import BatchGeometry, MicroBatch, StepBatch
from harness.runtime.train_state import DataPosition
from harness.runtime.user_errors import user_error
from harness.spec.sections.training_spec import TrainSpec

RowDataset = TokenDataset | ExampleDataset


@dataclass(frozen=True, slots=True)
class OrderGeometry:
    """Rows that `data.group_by_length` keeps together: those of a micro-step of all ranks, and those of a step."""

    micro_step_rows: int
    step_rows: int
    seedable_seed: int | None = None
    """The seed of accelerate's `SeedableRandomSampler`, whose order a run keeps that the Trainer began."""


@dataclass
class TrainData:
    """The training rows, in the order of each epoch."""

    dataset: RowDataset
    geometry: BatchGeometry
    data_parallel_rank: int
    seed: int
    shuffle: bool
    group_by_length: bool = True

    def __post_init__(self) -> None:
        micro_step = self.geometry.micro_batch_size * self.geometry.data_parallel_size
        self.order_geometry = OrderGeometry(micro_step, self.geometry.global_batch_size)

    def keep_order(self, order: OrderGeometry) -> None:
        """Order the rows as a run of this geometry did, so that a position in its data means the same in this one."""
        self.order_geometry = order
        self._order_cache.clear()

    @cached_property
    def rows_per_epoch(self) -> int:
        """All rows; with weights, as many as the first source to run out allows."""
        return sum(self._rows_per_source) if self._rows_per_source else len(self.dataset)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Whole global batches. The rest of an epoch is dropped; the next epoch's order moves those rows."""
        return self.rows_per_epoch // self.geometry.global_batch_size

    def fill_ratio(self, max_rows: int) -> float:
        """Share of the positions that hold a token and not padding, over all ranks: of the first epoch, or of its first
        `max_rows` rows.
        """
        geometry = self.geometry
        steps = min(self.steps_per_epoch, max(1, max_rows // geometry.global_batch_size))
        rows = self.epoch_order(0)[: steps * geometry.global_batch_size].reshape(-1, geometry.micro_batch_size)
        lengths = self.dataset.lengths[rows]
        positions = self.dataset.padded_length(lengths.max(axis=1)).sum() * geometry.micro_batch_size
        return float(lengths.sum() / max(1, positions))

    def batch_at(self, position: DataPosition) -> StepBatch:
        """The global batch at `position`.

        The global batch is the next rows of the epoch's order; micro-batch m of rank r is the r-th slice of its m-th
        part.
        """
        if position.offset + self.geometry.global_batch_size > self.rows_per_epoch:
            position = DataPosition(position.epoch + 1, 0)
        end = position.offset + self.geometry.global_batch_size
        # A copy: a view in the step's batch would keep the order of a past epoch in memory.
        indices = self.epoch_order(position.epoch)[position.offset : end].copy()
        rows = indices.reshape(
            self.geometry.accumulation_steps, self.geometry.data_parallel_size, self.geometry.micro_batch_size
        )
        return StepBatch(
            [self.dataset.make_batch(part) for part in rows[:, self.data_parallel_rank]],
            num_targets=int(self.dataset.num_targets[indices].sum()),
            num_tokens=int(self.dataset.lengths[indices].sum()),
            next_position=DataPosition(position.epoch, end),
            row_indices=rows,
        )

    @cached_property
    def _rows_per_source(self) -> tuple[int, ...] | None:
        """Rows of each group in an epoch, where they have weights."""
        weights = self.dataset.weights
        if weights is None:
            return None
        sizes = [len(group) for group in self.dataset.sources]
        total = min(size / weight for size, weight in zip(sizes, weights, strict=True))
        return tuple(min(size, max(1, round(total * w))) for size, w in zip(sizes, weights, strict=True))

    def epoch_order(self, epoch: int) -> np.ndarray:
        """The rows of an epoch in order: a function of the seed and the epoch."""
        order = self._order_cache.get(epoch)
        if order is None:
            self._order_cache.clear()  # a large corpus has a large order: cache one
            order = self._order_cache[epoch] = self._build_order(epoch)
        return order

    @cached_property
    def _order_cache(self) -> dict[int, np.ndarray]:
        return {}

    def _build_order(self, epoch: int) -> np.ndarray:
        if self.order_geometry.seedable_seed is not None:
            return shuffle_as_accelerate(len(self.dataset), self.order_geometry.seedable_seed, epoch)
        seed = self.seed if self.shuffle else None
        if self._rows_per_source:
            order = mix_sources([len(g) for g in self.dataset.sources], self._rows_per_source, seed, epoch)
        else:
            order = shuffle_rows(len(self.dataset), seed, epoch)
        uneven = not self.dataset.is_plain_stream and not self.dataset.is_packed
        if uneven and self.shuffle and self.group_by_length:
            kept = self.order_geometry
            seed_of_epoch = [self.seed, epoch]
            return group_by_length(order, self.dataset.lengths, kept.micro_step_rows, kept.step_rows, seed_of_epoch)
        return order


@dataclass(frozen=True)
class EvalData:
    """The held-out rows: one rank computes each of them once."""

    dataset: RowDataset
    micro_batch_size: int
    data_parallel_rank: int
    data_parallel_size: int

    def batches(self, max_batches: int | None) -> Iterator[MicroBatch | TensorBatch]:
        """This rank's batches; every rank has the same number of them.

        ZeRO-3 gathers weights in every forward, so that a rank with fewer rows must compute too: it pads its last batch
        with the first row, whose labels are ignored.
        """
        count = len(self.dataset)
        if max_batches is not None:
            count = min(count, max_batches * self.micro_batch_size * self.data_parallel_size)
        indices = np.arange(count)
        if not self.dataset.is_plain_stream and not self.dataset.is_packed:
            indices = indices[np.argsort(self.dataset.lengths[indices], kind="stable")]
        rank_indices = indices[self.data_parallel_rank :: self.data_parallel_size]
        rows_per_rank = -(-len(indices) // self.data_parallel_size)
        for i in range(-(-rows_per_rank // self.micro_batch_size)):
            part = rank_indices[i * self.micro_batch_size : (i + 1) * self.micro_batch_size]
            padding = np.full(self.micro_batch_size - len(part), indices[0], dtype=indices.dtype)
            rows = np.concatenate([part, padding])
            yield self.dataset.make_batch(rows, num_used=len(part))


def key_of_batch(train: TrainSpec) -> str:
    """The key of the spec that makes the rows of a step so many."""
    sizes = ("global_batch_size", "gradient_accumulation_steps")
    key = next((key for key in sizes if (getattr(train, key) or 1) > 1), "per_device_train_batch_size")
    return f"train.{key}"


def open_train_data(
    run: ResolvedRun, folder: Path, prepared: PreparedData, geometry: BatchGeometry, data_parallel_rank: int
) -> TrainData:
    """Map the training rows. Raises UserError (MD115) when they do not fill one global batch."""
    data = run.spec.data
    dataset = _open_dataset(run, folder, prepared, "train", geometry.micro_batch_size)
    train_data = TrainData(
        dataset, geometry, data_parallel_rank, run.spec.train.seed, data.shuffle, data.group_by_length
    )
    if not train_data.steps_per_epoch:
        raise user_error(
            "MD115",
            f"a step needs {geometry.global_batch_size:,} sequences, and the training data has "
            f"{train_data.rows_per_epoch:,} of them",
            key="data.train",
            notes=(
                f"a sequence has at most {data.max_length:,} tokens (`data.max_length`), the training data has "
                f"{prepared.train_tokens:,}",
                f"a step: micro-batch {geometry.micro_batch_size:,} x {geometry.accumulation_steps:,} accumulation "
                f"steps x {geometry.data_parallel_size:,} ranks",
            ),
            fix=f"add text, or set a shorter `data.max_length` or a smaller `{key_of_batch(run.spec.train)}`",
        )
    return train_data


def open_eval_data(
    run: ResolvedRun, folder: Path, prepared: PreparedData, geometry: BatchGeometry, data_parallel_rank: int
) -> EvalData | None:
    """Map the held-out rows; None if there are none. Raises UserError (MD115) if they do not fill one row."""
    if not prepared.eval_tokens:
        return None
    data = run.spec.data
    dataset = _open_dataset(run, folder, prepared, "eval", geometry.micro_batch_size)
    if not len(dataset):
        raise user_error(
            "MD115",
            f"the held-out text has {prepared.eval_tokens} tokens, less than one sequence of {data.max_length}",
            key="data.eval_fraction",
            fix="add text, or set a shorter `data.max_length` or `data.eval_fraction: 0.0`",
        )
    return EvalData(
        dataset,
        run.spec.eval.per_device_eval_batch_size or geometry.micro_batch_size,
        data_parallel_rank,
        geometry.data_parallel_size,
    )


def _open_dataset(
    run: ResolvedRun, folder: Path, prepared: PreparedData, role: str, micro_batch_size: int
) -> TokenDataset:
    data = run.spec.data
    multiple = data.pad_to_multiple_of or run.spec.parallel.sequence_parallel_size or 1
    groups = prepared.train if role == "train" else prepared.eval
    dataset = open_token_dataset(folder, groups, data.max_length, prepared.pad, multiple)
    if not any(group.answers for group in groups):
        return dataset
    needs_kl = run.spec.objective == "kto" and run.spec.kto.loss_type == "kto"
    return PreferenceDataset(
        dataset.sources, data.max_length, prepared.pad, multiple, max(2, micro_batch_size) if needs_kl else 0
    )


_WINDOW_BATCHES = 32
"""Global batches whose rows are sorted by length together: less padding, and still a random order."""


def shuffle_rows(count: int, seed: int | None, epoch: int) -> np.ndarray:
    """The epoch's permutation, a function of the seed and the epoch. `seed` None: as stored."""
    return np.arange(count) if seed is None else np.random.default_rng([seed, epoch]).permutation(count)


def shuffle_as_accelerate(count: int, seed: int, epoch: int) -> np.ndarray:
    """The epoch's permutation by accelerate's `SeedableRandomSampler` (`accelerate/data_loader.py`)."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch)).numpy()


def mix_sources(sizes: list[int], shares: tuple[int, ...], seed: int | None, epoch: int) -> np.ndarray:
    """The epoch's rows, a share from each group: epoch after epoch the next part of the group's own order, so that
    training reads all of a large group in the end.
    """
    parts, offset = [], 0
    for group, (size, share) in enumerate(zip(sizes, shares, strict=True)):
        positions = np.arange(epoch * share, (epoch + 1) * share)
        passes = [
            np.arange(size) if seed is None else np.random.default_rng([seed, group, int(number)]).permutation(size)
            for number in range(positions[0] // size, positions[-1] // size + 1)
        ]
        rows = np.concatenate(passes)[positions - positions[0] // size * size]
        parts.append(rows + offset)
        offset += size
    order = np.concatenate(parts)
    if seed is None:  # as stored, the groups spread evenly
        places = np.concatenate([(np.arange(n) + 0.5) / n for n in shares])
        return order[np.argsort(places, kind="stable")]
    return order[np.random.default_rng([seed, epoch]).permutation(len(order))]


def group_by_length(order: np.ndarray, lengths: np.ndarray, wave: int, total: int, seed: list[int]) -> np.ndarray:
    """The order, sorted inside windows so that the rows of a wave have about the same length.

    A wave is one micro-batch of every rank, which compute at once; a global batch of `total` rows is some waves. The
    waves are in random order.
    """
    window, whole = _WINDOW_BATCHES * total, len(order) // total * total
    rng = np.random.default_rng([*seed, 1])
    windows = [
        _sort_into_waves(order[start : min(whole, start + window)], lengths, wave, rng)
        for start in range(0, whole, window)
    ]
    return np.concatenate([*windows, order[whole:]])


def _sort_into_waves(rows: np.ndarray, lengths: np.ndarray, wave: int, rng: np.random.Generator) -> np.ndarray:
    waves = rows[np.argsort(lengths[rows], kind="stable")].reshape(-1, wave)
    return waves[rng.permutation(len(waves))].reshape(-1)
