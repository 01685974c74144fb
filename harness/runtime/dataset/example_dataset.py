# SPDX-License-Identifier: Apache-2.0
"""Rows of an objective other than the next token: maps of arrays and numbers, or whatever a user's dataset returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from harness.runtime.micro_batch import copy_to_device


@dataclass(frozen=True, slots=True)
class TensorBatch:
    """A micro-batch of such rows: tensors on the host, in maps, lists and tuples; `weight` is its number of units."""

    tensors: Any
    weight: float

    def to_device(self, device: torch.device) -> Any:
        """The same tensors on a device."""
        return map_tensors(self.tensors, lambda tensor: copy_to_device(tensor, device))

    def pin_memory(self) -> TensorBatch:
        """The same in pinned memory."""
        return TensorBatch(map_tensors(self.tensors, torch.Tensor.pin_memory), self.weight)

    def host_tensors(self) -> list[torch.Tensor]:
        """All tensors, in order."""
        return list_tensors(self.tensors)


def list_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in maps, lists and tuples, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in list_tensors(part)]


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with each of its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [map_tensors(part, change) for part in value]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return parts if isinstance(value, list) else tuple(parts)
    return value


@dataclass(frozen=True)
class ExampleDataset:
    """Rows by index, as `TrainData` and `EvalData` read them. A row is one unit.

    `weigh` gives the units of a micro-batch.
    """

    rows: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    weigh: Callable[[Any, int], float] = lambda _batch, num_rows: num_rows
    is_plain_stream = True
    """Rows are all alike: any of them share a micro-batch."""
    is_packed = False
    pad_to_multiple_of = 1
    max_length = 0
    weights = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sources(self) -> tuple[ExampleDataset, ...]:
        """One group."""
        return (self,)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row: rows have none."""
        return np.zeros(len(self), dtype=np.int64)

    @cached_property
    def num_targets(self) -> np.ndarray:
        """Units of each row."""
        return np.ones(len(self), dtype=np.int64)

    def document_lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens of each row."""
        lengths: np.ndarray = self.lengths[indices]
        return lengths

    def padded_length(self, longest: int | np.ndarray) -> np.ndarray:
        """Positions of a row in a micro-batch whose longest row has so many tokens."""
        return np.asarray(longest)

    def make_batch(self, indices: np.ndarray, num_used: int | None = None) -> TensorBatch:
        """The rows as a micro-batch, the first `num_used` of them; for 0 the first row, which weighs nothing."""
        used = indices if num_used is None else indices[: max(num_used, 1)]
        tensors = self.collate([self.rows[int(index)] for index in used])
        return TensorBatch(tensors, 0 if num_used == 0 else self.weigh(tensors, len(used)))
