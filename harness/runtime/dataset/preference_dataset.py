# SPDX-License-Identifier: Apache-2.0
"""Rows of preferences as batches: of a pair both sequences, of a labelled answer that one and another for KTO's KL; and
texts with labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
import torch

from harness.runtime.dataset.token_dataset import BlockDataset, DocumentDataset, TokenDataset
from harness.runtime.micro_batch import IGNORE_INDEX, MicroBatch


@dataclass(frozen=True, slots=True)
class PreferenceBatch(MicroBatch):
    """Sequences as in MicroBatch: of pairs all chosen ones, then all rejected ones. Each row below is a pair or a
    labelled answer, (rows,) on the host.

    `is_used` is False for those that only fill an evaluation's last batch; `is_chosen` is a labelled answer's label;
    `kl` are prompts with the answers of other rows; `reference` (rows, columns) in fp32 is what the model said before
    training, None while that is computed; `values` (rows, width) in fp32 are margins of pairs, or labels.
    """

    is_used: torch.Tensor | None = None
    is_chosen: torch.Tensor | None = None
    kl: MicroBatch | None = None
    reference: torch.Tensor | None = None
    values: torch.Tensor | None = None

    @property
    def num_targets(self) -> int:
        """Rows that count: the units of the loss."""
        return 0 if self.is_used is None else int(self.is_used.sum())

    def pin_memory(self) -> PreferenceBatch:
        """As it is: the tensors are small, and `copy_to_device` pins them."""
        return self


@dataclass(frozen=True)
class PreferenceDataset(TokenDataset):
    """All rows of the training or the held-out data. `kl_rows`: of labelled answers, the rows among which the answer
    for the KL term is taken, 0 for none; `columns` holds the reference's numbers once they are known.
    """

    kl_rows: int = 0
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def num_targets(self) -> np.ndarray:
        """One for each row: a pair, or an answer."""
        return np.ones(len(self), dtype=np.int64)

    def document_lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens of each sequence of these rows."""
        parts = [len(part) for i in indices for part, _ in self.sequences(int(i)) if len(part)]
        return np.array(parts, dtype=np.int64)

    def sequences(self, index: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids, mask of the answer) of the chosen and of the rejected sequence; a labelled answer has one of them."""
        group, local = self._locate(index)
        ids, mask, _ = group.row(local)
        trained, num_chosen = cast("np.ndarray", mask), cast("np.ndarray", cast("DocumentDataset", group).num_chosen)
        cut = int(num_chosen[local])
        return [(ids[:cut], trained[:cut]), (ids[cut:], trained[cut:])]

    @cached_property
    def is_desirable(self) -> np.ndarray:
        """The label of each row of labelled answers."""
        chosen = [source.num_chosen for source in self.sources if not isinstance(source, BlockDataset)]
        return np.concatenate([np.asarray(part) > 0 for part in chosen if part is not None])

    @cached_property
    def values(self) -> np.ndarray | None:
        """(rows, width) in fp32: margins or labels."""
        parts = [source.values for source in self.sources if not isinstance(source, BlockDataset)]
        return np.concatenate([part for part in parts if part is not None]) if parts[0] is not None else None

    def make_batch(self, indices: np.ndarray, num_used: int | None = None) -> PreferenceBatch:
        """The rows as a micro-batch. `num_used`: rows after so many do not count."""
        both = [self.sequences(int(i)) for i in indices]
        is_paired = not self.kl_rows and all(len(part[0]) for pair in both for part in pair)
        ordered = [pair[k] for k in (0, 1) for pair in both] if is_paired else [_only(pair) for pair in both]
        batch = self._pad(ordered)
        kl = None
        if self.kl_rows:
            others = [_only(self.sequences(self._kl_partner(int(i)))) for i in indices]
            kl = self._pad([self._join(own, other) for own, other in zip(ordered, others, strict=True)])
        used = np.arange(len(indices)) < (len(indices) if num_used is None else num_used)
        reference = self.columns.get("reference")
        return PreferenceBatch(
            batch.input_ids,
            batch.labels,
            attention_mask=batch.attention_mask,
            is_used=torch.from_numpy(used),
            is_chosen=None if is_paired else torch.from_numpy(self.is_desirable[indices]),
            kl=kl,
            reference=None if reference is None else torch.from_numpy(reference[indices]),
            values=None if self.values is None else torch.from_numpy(self.values[indices]),
        )

    def _kl_partner(self, index: int) -> int:
        """The row before this one in its block of `kl_rows`, in the order of the data; the last for the first. It does
        not depend on the order of an epoch, so that the reference's number can be kept.
        """
        start = index // self.kl_rows * self.kl_rows
        size = min(self.kl_rows, len(self) - start)
        return start + (index - start - 1) % size

    def _join(
        self, own: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The prompt of one sequence and the answer of another, up to `max_length`."""
        prompt, answer = own[0][~own[1]], other[0][other[1]]
        ids = np.concatenate([prompt, answer])[: self.max_length]
        return ids, np.arange(len(ids)) >= len(prompt)

    def _pad(self, sequences: list[tuple[np.ndarray, np.ndarray]]) -> MicroBatch:
        length = int(self.padded_length(max(len(ids) for ids, _ in sequences)))
        shape = (len(sequences), length)
        ids, labels = np.full(shape, self.pad_token_id, dtype=np.int64), np.full(shape, IGNORE_INDEX, dtype=np.int64)
        present = np.zeros(shape, dtype=np.int64)
        for i, (tokens, trained) in enumerate(sequences):
            count = len(tokens)
            ids[i, :count], present[i, :count] = tokens, 1
            labels[i, :count][trained] = tokens[trained]
        mask = None if present.all() else torch.from_numpy(present)
        return MicroBatch(torch.from_numpy(ids), torch.from_numpy(labels), attention_mask=mask)

    def iter_examples(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(ids, labels) of both sequences of each row, one after the other."""
        for i in indices:
            ids, trained = (np.concatenate(parts) for parts in zip(*self.sequences(int(i)), strict=True))
            yield ids.astype(np.int64), np.where(trained, ids.astype(np.int64), IGNORE_INDEX)


def _only(pair: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return pair[0] if len(pair[0][0]) else pair[1]
