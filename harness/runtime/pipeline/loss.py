# SPDX-License-Identifier: Apache-2.0
"""The loss of the last stage: that of `transformers`, weighted by tokens, and its sum in float64."""

from __future__ import annotations

from typing import Any

import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from harness.runtime.pipeline.vocabulary_parallel import vocabulary_parallel_loss


class TokenLoss:
    """Called by the engine for each micro-batch of the last stage; keeps the sum until `pop_loss`.

    `tensor_group` is set where each of its ranks has the logits of a part of the vocabulary.
    """

    tensor_group: Any = None

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sum: torch.Tensor | None = None
        self.__name__ = "token-weighted cross entropy"  # DeepSpeed prints it

    def __call__(self, logits: torch.Tensor, labels: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Sum of the token losses over `share`: `labels` is (labels (rows, length), share (a scalar))."""
        targets, share = labels
        if self.tensor_group is not None:
            loss = vocabulary_parallel_loss(logits, targets, share, self.tensor_group)
        else:
            loss = ForCausalLMLoss(logits, targets, self._vocab_size, num_items_in_batch=share)
        value = loss.detach().double()
        self._sum = value if self._sum is None else self._sum + value
        return loss

    def pop_loss(self, device: torch.device) -> torch.Tensor:
        """The sum since the last call, a float64 scalar; 0 on a rank that computes no loss."""
        total, self._sum = self._sum, None
        return torch.zeros((), dtype=torch.float64, device=device) if total is None else total
