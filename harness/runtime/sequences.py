"""Rows of the token files as tensors. Which rows are drawn when is in `data.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from harness.runtime.batch import IGNORED, MicroBatch
from harness.runtime.corpus.prepare import Part
from harness.runtime.corpus.store import mapped


@dataclass(frozen=True)
class Blocks:
    """A flat token file seen as sequences of `length` tokens; a shorter rest at the end is not seen."""

    tokens: np.ndarray
    length: int
    weight: float | None = None

    @staticmethod
    def open(path: Path, length: int, weight: float | None = None) -> Blocks:
        """Map a file; pages are read when they are used."""
        return Blocks(mapped(path), length, weight)

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.full(len(self), self.length, dtype=np.int64)

    @cached_property
    def counts(self) -> np.ndarray:
        """Predicted tokens of each row."""
        return np.full(len(self), self.length - 1, dtype=np.int64)

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """(ids, which are trained on, where its documents begin)."""
        start = index * self.length
        return self.tokens[start : start + self.length], None, np.zeros(1, dtype=np.int64)

    def documents(self, index: int) -> np.ndarray:  # noqa: ARG002
        """Tokens of each document of a row: nobody knows where in a stream one ends."""
        return np.array([self.length])

    def rows(self, indices: np.ndarray) -> torch.Tensor:
        """int64, (len(indices), length)."""
        starts = np.asarray(indices, dtype=np.int64)[:, None] * self.length
        return torch.from_numpy(self.tokens[starts + np.arange(self.length)].astype(np.int64))


@dataclass(frozen=True)
class Documents:
    """Rows of whole documents, as `corpus.rows` writes them."""

    tokens: np.ndarray
    trained: np.ndarray | None
    docs: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    packed: bool
    weight: float | None = None

    @staticmethod
    def open(folder: Path, part: Part) -> Documents:
        """Map the files of a part."""
        found = {name: mapped(folder / f"{part.name}.{name}.npy") for name in ("docs", "rows", "counts")}
        trained = mapped(folder / f"{part.name}.trained.npy") if part.masked else None
        tokens = mapped(folder / f"{part.name}.npy")
        return Documents(tokens, trained, found["docs"], found["rows"], found["counts"], part.packed, part.weight)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        edges = np.asarray(self.docs)[np.asarray(self.starts)]
        return np.diff(edges)

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """(ids, which are trained on, where its documents begin)."""
        edges = self.docs[self.starts[index] : self.starts[index + 1] + 1]
        first, last = int(edges[0]), int(edges[-1])
        trained = None if self.trained is None else self.trained[first:last]
        return self.tokens[first:last], trained, np.asarray(edges[:-1]) - first

    def documents(self, index: int) -> np.ndarray:
        """Tokens of each document of a row."""
        return np.diff(self.docs[self.starts[index] : self.starts[index + 1] + 1])


@dataclass(frozen=True)
class Sequences:
    """All rows of the training or the held-out data, group after group. `full`: what packed rows are filled up to."""

    groups: tuple[Blocks | Documents, ...]
    full: int
    pad: int = 0
    multiple: int = 1

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    @cached_property
    def plain(self) -> bool:
        """Nothing but a stream of text: every row is full, and every token is predicted."""
        return len(self.groups) == 1 and isinstance(self.groups[0], Blocks) and not self.full % self.multiple

    @cached_property
    def packed(self) -> bool:
        """Do rows hold several documents?"""
        return any(isinstance(group, Documents) and group.packed for group in self.groups)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.concatenate([group.lengths for group in self.groups])

    def document_lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens of each document of these rows, one after the other."""
        if not self.packed:
            return self.lengths[indices]
        return np.concatenate([self._documents(int(i)) for i in indices])

    def _documents(self, index: int) -> np.ndarray:
        for group in self.groups:
            if index < len(group):
                return group.documents(index)
            index -= len(group)
        raise IndexError(index)

    @cached_property
    def counts(self) -> np.ndarray:
        """Predicted tokens of each row."""
        return np.concatenate([np.asarray(group.counts, dtype=np.int64) for group in self.groups])

    @cached_property
    def weights(self) -> tuple[float, ...] | None:
        """Share of each group in an epoch; None: all of everything."""
        weights = tuple(group.weight for group in self.groups)
        return None if None in weights else weights  # type: ignore[return-value]

    def batch(self, indices: np.ndarray, used: int | None = None) -> MicroBatch:
        """The rows as a micro-batch; with `used`, the labels of rows behind the first so many count for nothing."""
        if self.plain:
            ids = self.groups[0].rows(indices)  # type: ignore[union-attr]
            if used is None:
                return MicroBatch(ids, ids)
            labels = ids.clone()
            labels[used:] = IGNORED
            return MicroBatch(ids, labels)
        rows = [self._row(int(i)) for i in indices]
        longest = self.full if self.packed else max(len(ids) for ids, _, _ in rows)
        length = -(-longest // self.multiple) * self.multiple
        shape = (len(rows), length)
        ids, labels = np.full(shape, self.pad, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
        positions, present = np.empty(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for i, (tokens, trained, begins) in enumerate(rows):
            count = len(tokens)
            ids[i, :count], present[i, :count] = tokens, 1
            labels[i, :count] = tokens
            if trained is not None:  # not by np.where, which would keep the ids' unsigned type
                labels[i, :count][~trained] = IGNORED
            labels[i, begins] = IGNORED
            positions[i] = _positions(begins, count, length)
        if used is not None:
            labels[used:] = IGNORED
        tensors = torch.from_numpy(ids), torch.from_numpy(labels)
        if self.packed:  # with restarting positions and no mask, attention stays inside each document
            return MicroBatch(*tensors, position_ids=torch.from_numpy(positions))
        # A mask of ones alone would be looked at by the model, which waits for the device, to be left out again.
        return MicroBatch(*tensors, attention_mask=None if present.all() else torch.from_numpy(present))

    def _row(self, index: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        for group in self.groups:
            if index < len(group):
                return group.row(index)
            index -= len(group)
        raise IndexError(index)

    def examples(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(ids, labels) of whole rows without padding."""
        for i in indices:
            tokens, trained, begins = self._row(int(i))
            labels = tokens.astype(np.int64)
            labels = labels if trained is None else np.where(trained, labels, IGNORED)
            labels[begins] = IGNORED
            yield tokens.astype(np.int64), labels


def _positions(begins: np.ndarray, count: int, length: int) -> np.ndarray:
    """0, 1, 2 ... in each document, and in the padding, which is one more."""
    starts = np.append(begins, count) if count < length else begins
    return np.arange(length) - np.repeat(starts, np.diff(np.append(starts, length)))


def open_sequences(folder: Path, parts: tuple[Part, ...], length: int, pad: int, multiple: int = 1) -> Sequences:
    """Map all groups of the training or the held-out part."""
    groups = [
        Documents.open(folder, part) if part.rows else Blocks.open(folder / f"{part.name}.npy", length, part.weight)
        for part in parts
    ]
    return Sequences(tuple(groups), length, pad, multiple)
