# SPDX-License-Identifier: Apache-2.0
"""Rows of the token files as tensors. `sampler.py` decides the rows of each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from harness.runtime.dataset.mmap_array import map_array
from harness.runtime.dataset.preparation import PreparedGroup
from harness.runtime.micro_batch import IGNORE_INDEX, MicroBatch, find_borders


@dataclass(frozen=True)
class BlockDataset:
    """A flat token file as sequences of `length` tokens; a shorter rest at the end is unused."""

    tokens: np.ndarray
    length: int
    weight: float | None = None

    @staticmethod
    def open(path: Path, length: int, weight: float | None = None) -> BlockDataset:
        """Map a file."""
        return BlockDataset(map_array(path), length, weight)

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.full(len(self), self.length, dtype=np.int64)

    @cached_property
    def num_targets(self) -> np.ndarray:
        """Predicted tokens of each row."""
        return np.full(len(self), self.length - 1, dtype=np.int64)

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """(ids, mask of trained tokens, starts of its documents)."""
        start = index * self.length
        return self.tokens[start : start + self.length], None, np.zeros(1, dtype=np.int64)

    def document_lengths(self, index: int) -> np.ndarray:  # noqa: ARG002
        """Tokens of each document of a row; a stream does not record where one ends."""
        return np.array([self.length])

    def token_rows(self, indices: np.ndarray) -> torch.Tensor:
        """int64, (len(indices), length)."""
        starts = np.asarray(indices, dtype=np.int64)[:, None] * self.length
        return torch.from_numpy(self.tokens[starts + np.arange(self.length)].astype(np.int64))


@dataclass(frozen=True)
class DocumentDataset:
    """Rows of whole documents, as `token_rows.write_rows` writes them."""

    tokens: np.ndarray
    trained_mask: np.ndarray | None
    document_offsets: np.ndarray
    row_starts: np.ndarray
    num_targets: np.ndarray
    packed: bool
    weight: float | None = None
    num_chosen: np.ndarray | None = None
    values: np.ndarray | None = None
    """Of preferences and labels, both as in `TokenizedBatch`."""

    @staticmethod
    def open(folder: Path, part: PreparedGroup) -> DocumentDataset:
        """Map the files of a part."""
        arrays = {name: map_array(folder / f"{part.name}.{name}.npy") for name in ("docs", "rows", "counts")}
        trained = map_array(folder / f"{part.name}.trained.npy") if part.masked else None
        tokens = map_array(folder / f"{part.name}.npy")
        chosen = map_array(folder / f"{part.name}.chosen.npy") if part.answers else None
        values = map_array(folder / f"{part.name}.values.npy").reshape(-1, part.values) if part.values else None
        rows = (arrays["docs"], arrays["rows"], arrays["counts"])
        return DocumentDataset(tokens, trained, *rows, part.packed, part.weight, chosen, values)

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        edges = np.asarray(self.document_offsets)[np.asarray(self.row_starts)]
        return np.diff(edges)

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """(ids, mask of trained tokens, starts of its documents)."""
        edges = self.document_offsets[self.row_starts[index] : self.row_starts[index + 1] + 1]
        first, last = int(edges[0]), int(edges[-1])
        trained = None if self.trained_mask is None else self.trained_mask[first:last]
        return self.tokens[first:last], trained, np.asarray(edges[:-1]) - first

    def document_lengths(self, index: int) -> np.ndarray:
        """Tokens of each document of a row."""
        return np.diff(self.document_offsets[self.row_starts[index] : self.row_starts[index + 1] + 1])


@dataclass(frozen=True)
class TokenDataset:
    """All rows of the training or the held-out data, group after group. Packed rows are padded to `max_length`."""

    sources: tuple[BlockDataset | DocumentDataset, ...]
    max_length: int
    pad_token_id: int = 0
    pad_to_multiple_of: int = 1

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    @cached_property
    def is_plain_stream(self) -> bool:
        """Nothing but a stream of text: every row is full, and every token is predicted."""
        return (
            len(self.sources) == 1
            and isinstance(self.sources[0], BlockDataset)
            and not self.max_length % self.pad_to_multiple_of
        )

    @cached_property
    def is_packed(self) -> bool:
        """Do rows hold several documents?"""
        return any(isinstance(group, DocumentDataset) and group.packed for group in self.sources)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.concatenate([group.lengths for group in self.sources])

    def document_lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens of each document of these rows, one after the other."""
        if not self.is_packed:
            lengths: np.ndarray = self.lengths[indices]
            return lengths
        return np.concatenate([self._document_lengths_of(int(i)) for i in indices])

    def _document_lengths_of(self, index: int) -> np.ndarray:
        group, local = self._locate(index)
        return group.document_lengths(local)

    def _locate(self, index: int) -> tuple[BlockDataset | DocumentDataset, int]:
        """The group of a row, and its index there."""
        for group in self.sources:
            if index < len(group):
                return group, index
            index -= len(group)
        raise IndexError(index)

    @cached_property
    def num_targets(self) -> np.ndarray:
        """Predicted tokens of each row."""
        return np.concatenate([np.asarray(group.num_targets, dtype=np.int64) for group in self.sources])

    @cached_property
    def weights(self) -> tuple[float, ...] | None:
        """Share of each group in an epoch; None: all of everything."""
        weights = tuple(group.weight for group in self.sources if group.weight is not None)
        return weights if len(weights) == len(self.sources) else None

    def padded_length(self, longest: int | np.ndarray) -> np.ndarray:
        """Positions of a row in a micro-batch whose longest row has so many tokens."""
        longest = np.full_like(longest, self.max_length) if self.is_packed else np.asarray(longest)
        return -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def make_batch(self, indices: np.ndarray, num_used: int | None = None) -> MicroBatch:
        """The rows as a micro-batch. `num_used`: the labels of rows after so many are ignored."""
        stream = self.sources[0] if self.is_plain_stream else None
        if isinstance(stream, BlockDataset):
            return _stream_batch(stream.token_rows(indices), num_used)
        rows = [self._row_at(int(i)) for i in indices]
        length = int(self.padded_length(max(len(ids) for ids, _, _ in rows)))
        shape = (len(rows), length)
        ids, labels = np.full(shape, self.pad_token_id, dtype=np.int64), np.full(shape, IGNORE_INDEX, dtype=np.int64)
        positions, present = np.empty(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for i, (tokens, trained, starts) in enumerate(rows):
            count = len(tokens)
            ids[i, :count], present[i, :count] = tokens, 1
            labels[i, :count] = tokens
            if trained is not None:  # not by np.where, which would keep the ids' unsigned type
                labels[i, :count][~trained] = IGNORE_INDEX
            labels[i, starts] = IGNORE_INDEX
            positions[i] = _position_ids(starts, count, length)
        if num_used is not None:
            labels[num_used:] = IGNORE_INDEX
        tensors = torch.from_numpy(ids), torch.from_numpy(labels)
        if self.is_packed:  # with restarting positions and no mask, attention stays inside each document
            position_ids = torch.from_numpy(positions)
            return MicroBatch(*tensors, position_ids=position_ids, document_borders=find_borders(position_ids))
        # For a mask of ones alone the model would wait for the device, only to drop the mask.
        return MicroBatch(*tensors, attention_mask=None if present.all() else torch.from_numpy(present))

    def _row_at(self, index: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        group, local = self._locate(index)
        return group.row(local)

    def iter_examples(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(ids, labels) of whole rows without padding."""
        for i in indices:
            tokens, trained, starts = self._row_at(int(i))
            labels = tokens.astype(np.int64)
            labels = labels if trained is None else np.where(trained, labels, IGNORE_INDEX)
            labels[starts] = IGNORE_INDEX
            yield tokens.astype(np.int64), labels


def _stream_batch(ids: torch.Tensor, num_used: int | None) -> MicroBatch:
    if num_used is None:
        return MicroBatch(ids, ids)
    labels = ids.clone()
    labels[num_used:] = IGNORE_INDEX
    return MicroBatch(ids, labels)


def _position_ids(starts: np.ndarray, count: int, length: int) -> np.ndarray:
    """0, 1, 2 ... in each document, and again in the padding."""
    starts = np.append(starts, count) if count < length else starts
    positions: np.ndarray = np.arange(length) - np.repeat(starts, np.diff(np.append(starts, length)))
    return positions


def open_token_dataset(
    folder: Path, parts: tuple[PreparedGroup, ...], max_length: int, pad_token_id: int, pad_to_multiple_of: int = 1
) -> TokenDataset:
    """Map all groups of the training or the held-out part."""
    groups = [
        DocumentDataset.open(folder, part)
        if part.rows
        else BlockDataset.open(folder / f"{part.name}.npy", max_length, part.weight)
        for part in parts
    ]
    return TokenDataset(tuple(groups), max_length, pad_token_id, pad_to_multiple_of)
