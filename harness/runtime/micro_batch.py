"""What one rank computes at once. Made by the data side, taken by a stepper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

IGNORE_INDEX = -100
"""The label that torch's cross entropy leaves out."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """int64 tensors on the host, each (rows, length).

    `labels` are not shifted, as `transformers` wants them; positions with IGNORED do not count. `position_ids` restart
    at 0 where rows hold several documents, whose first label is IGNORED. `attention_mask` is 0 at padding, and
    None where nothing is padded.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None

    @property
    def num_targets(self) -> int:
        """Tokens that are predicted: a label counts from the second position of a row on."""
        return int((self.labels[:, 1:] != IGNORE_INDEX).sum())

    def to_model_inputs(self, device: torch.device) -> dict[str, Any]:
        """What the model's forward takes beside the labels, on the device."""
        named = {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "attention_mask": self.attention_mask,
        }
        return {name: t.to(device, non_blocking=True) for name, t in named.items() if t is not None}

    def pin_memory(self) -> MicroBatch:
        """The same in pinned memory, from which a device copies while the host goes on."""
        ids = self.input_ids.pin_memory()
        labels = ids if self.labels is self.input_ids else self.labels.pin_memory()
        rest = (None if t is None else t.pin_memory() for t in (self.position_ids, self.attention_mask))
        return MicroBatch(ids, labels, *rest)
