# SPDX-License-Identifier: Apache-2.0
"""Micro-batches and batches: the data side makes them, a stepper computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.runtime.train_state import DataPosition

IGNORE_INDEX = -100
"""The label that torch's cross entropy leaves out."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """int64 tensors on the host, each (rows, length).

    `labels` are not shifted, as `transformers` wants them; positions with IGNORE_INDEX do not count. `position_ids`
    restart at 0 where rows hold several documents, whose first label is IGNORE_INDEX. `attention_mask` is 0 at padding,
    and None where nothing is padded. `document_borders`, of packed rows: cumulative lengths of the documents, and of
    the padding behind them, over all rows, one row after the other.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None
    document_borders: tuple[int, ...] | None = None

    @property
    def num_targets(self) -> int:
        """Tokens that are predicted: a label counts from the second position of a row on."""
        return int((self.labels[:, 1:] != IGNORE_INDEX).sum())

    def to_model_inputs(self, device: torch.device) -> dict[str, Any]:
        """The arguments of the model's forward other than the labels, on the device."""
        inputs = {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "attention_mask": self.attention_mask,
        }
        return {name: copy_to_device(t, device) for name, t in inputs.items() if t is not None}

    def as_one_row(self) -> MicroBatch:
        """All rows as one, (1, rows x length), whose documents have borders. Padded rows have none, and raise
        ValueError.
        """
        if self.document_borders is None or self.attention_mask is not None:
            raise ValueError("rows are joined where they hold packed documents with borders and no mask")
        positions = None if self.position_ids is None else self.position_ids.reshape(1, -1)
        ids, labels = self.input_ids.reshape(1, -1), self.labels.reshape(1, -1)
        return MicroBatch(ids, labels, positions, None, self.document_borders)

    def host_tensors(self) -> list[torch.Tensor]:
        """The tensors by which batches are told apart."""
        return [self.input_ids]

    def pin_memory(self) -> MicroBatch:
        """The same in pinned memory, from which a device copies asynchronously."""
        ids = self.input_ids.pin_memory()
        labels = ids if self.labels is self.input_ids else self.labels.pin_memory()
        positions, mask = (None if t is None else t.pin_memory() for t in (self.position_ids, self.attention_mask))
        return MicroBatch(ids, labels, positions, mask, self.document_borders)


def find_borders(position_ids: torch.Tensor) -> tuple[int, ...]:
    """The borders of the documents of packed rows, from their position ids (rows, length) on the host."""
    starts = torch.nonzero(position_ids.flatten() == 0).flatten()
    return (*starts.tolist(), position_ids.numel())


def copy_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy that the host does not wait for. It starts from pinned memory, which parts of rows and rows of an
    evaluation are not in: from other memory the copy would wait for all pending work of the device.
    """
    if device.type == "cpu":
        return tensor
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class BatchGeometry:
    """The global batch in sequences: a micro-batch x accumulation steps x data-parallel ranks."""

    micro_batch_size: int
    accumulation_steps: int
    data_parallel_size: int

    @property
    def global_batch_size(self) -> int:
        """Sequences a step, over all ranks."""
        return self.micro_batch_size * self.accumulation_steps * self.data_parallel_size


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step's data: this rank's micro-batches, counts of the global batch, and the position of the next one.

    `num_targets` counts the units (predicted tokens, pairs, examples) of all data-parallel ranks, `num_tokens` all
    tokens that are not padding; `row_indices`, (accumulation, data-parallel ranks, micro-batch), are the sequences of
    all ranks.
    """

    micro_batches: list[Any]
    num_targets: int
    num_tokens: int
    next_position: DataPosition
    row_indices: np.ndarray
