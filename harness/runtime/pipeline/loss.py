# SPDX-License-Identifier: Apache-2.0
"""The loss of the last stage: that of `transformers`, weighted by tokens, and its sum in float64."""

from __future__ import annotations

import torch
from transformers.loss.loss_utils import ForCausalLMLoss


class TokenLoss:
    """Called by the engine for each micro-batch of the last stage; keeps the sum until `pop_loss`."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sum: torch.Tensor | None = None
        self.__name__ = "token-weighted cross entropy"  # DeepSpeed prints it

    def __call__(self, logits: torch.Tensor, labels: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Sum of the token losses over `share`: `labels` is (labels (rows, length), share (a scalar))."""
        targets, share = labels
        loss: torch.Tensor = ForCausalLMLoss(logits, targets, self._vocab_size, num_items_in_batch=share)
        value = loss.detach().double()
        self._sum = value if self._sum is None else self._sum + value
        return loss

    def pop_loss(self, device: torch.device) -> torch.Tensor:
        """The sum since the last call, a float64 scalar; 0 on a rank that computes no loss."""
        total, self._sum = self._sum, None
        return torch.zeros((), dtype=torch.float64, device=device) if total is None else total
