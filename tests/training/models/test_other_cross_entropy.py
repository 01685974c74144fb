# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's chunked cross entropy and ours: the same loss and gradients, and who has all logits at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deepspeed.runtime.chunked_cross_entropy import chunked_cross_entropy as cross_entropy_of_deepspeed

from harness.runtime.chunked_cross_entropy import chunked_cross_entropy
from tests.support.training.allocations import peak_of

TOKENS, SIZE, WORDS, CHUNK = 96, 16, 600, 16


def outcome(loss_of: Callable[[Any, Any, Any], Any], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Loss, and gradients of hidden states and weight."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, SIZE).to(dtype).requires_grad_()
    weight = torch.randn(WORDS, SIZE).to(dtype).requires_grad_()
    targets = torch.randint(WORDS, (TOKENS,))
    targets[::7] = -100
    loss = loss_of(hidden, weight, targets)
    loss.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return [loss.detach(), hidden.grad, weight.grad]


def ours(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return chunked_cross_entropy(hidden, weight, targets, float((targets != -100).sum()), CHUNK)


def of_deepspeed(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = cross_entropy_of_deepspeed(hidden @ weight.t(), targets, block_rows=CHUNK)
    return loss


def test_both_have_the_same_loss_and_gradients() -> None:
    for mine, other in zip(outcome(ours), outcome(of_deepspeed), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_deepspeed_holds_all_logits_and_their_gradient(dtype: torch.dtype) -> None:
    """Ours holds the logits of a chunk; both hold the gradients of hidden states and weight."""
    logits = TOKENS * WORDS * dtype.itemsize
    assert peak_of(lambda: outcome(of_deepspeed, dtype)) > 2 * logits
    assert peak_of(lambda: outcome(of_deepspeed, dtype)) - peak_of(lambda: outcome(ours, dtype)) > logits
