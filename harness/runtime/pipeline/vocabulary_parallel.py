# SPDX-License-Identifier: Apache-2.0
"""The vocabulary over the ranks of a tensor group: the embedding, and the cross entropy of logits in parts.

Each rank has the rows of an equal range of token ids, in the order of the ranks.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from deepspeed import comm as dist
from torch import nn
from torch.nn import functional

from harness.runtime.pipeline.tensor_region import sum_over_tensor_group

IGNORED_LABEL = -100


class VocabularyParallelEmbedding(nn.Module):
    """An `nn.Embedding` of which this rank has the rows from `first` on; what it lacks counts as zero in the sum."""

    def __init__(self, weight: nn.Parameter, first: int, padding_idx: int | None, group: Any) -> None:
        super().__init__()
        self.weight, self.group = weight, group
        self._first = first
        is_here = padding_idx is not None and first <= padding_idx < first + len(weight)
        self._padding_idx = cast("int", padding_idx) - first if is_here else None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (rows, length) to hidden states (rows, length, hidden). A collective of the tensor group."""
        local_ids = ids - self._first
        is_elsewhere = (local_ids < 0) | (local_ids >= len(self.weight))
        hidden = functional.embedding(local_ids.masked_fill(is_elsewhere, 0), self.weight, self._padding_idx)
        return sum_over_tensor_group(hidden.masked_fill(is_elsewhere.unsqueeze(-1), 0), self.group)


def vocabulary_parallel_loss(
    logits: torch.Tensor, labels: torch.Tensor, share: torch.Tensor, group: Any
) -> torch.Tensor:
    """Sum of the token losses over `share`, as the loss of `transformers` computes it from all logits.

    `logits` (rows, length, vocabulary / ranks), `labels` (rows, length) with -100 where nothing is predicted. A
    collective of the tensor group; the value is the same on all its ranks.
    """
    targets = functional.pad(labels, (0, 1), value=IGNORED_LABEL)[..., 1:].reshape(-1)
    parts = logits.float().view(-1, logits.shape[-1])
    loss = _VocabularyParallelCrossEntropy.apply(parts, targets, group)  # type: ignore[no-untyped-call]
    return cast("torch.Tensor", loss) / share


class _VocabularyParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: Any) -> torch.Tensor:
        """float32 (tokens, vocabulary / ranks), int64 (tokens) -> the sum of the losses."""
        is_predicted = targets != IGNORED_LABEL
        local_targets = targets - dist.get_rank(group=group) * logits.shape[-1]
        is_here = is_predicted & (local_targets >= 0) & (local_targets < logits.shape[-1])
        local_targets = torch.where(is_here, local_targets, 0)
        largest = logits.amax(dim=-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - largest.unsqueeze(-1)
        target_logits = shifted.gather(-1, local_targets.unsqueeze(-1)).squeeze(-1).masked_fill(~is_here, 0)
        exponentials = shifted.exp_()
        sums = torch.stack([exponentials.sum(dim=-1), target_logits])
        dist.all_reduce(sums, group=group)
        total, target_logits = sums
        softmax = exponentials.div_(total.unsqueeze(-1))
        ctx.save_for_backward(softmax, local_targets, is_here, is_predicted)
        loss: torch.Tensor = (total.log() - target_logits).masked_fill(~is_predicted, 0).sum()
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        softmax, local_targets, is_here, is_predicted = ctx.saved_tensors
        gradient = softmax * is_predicted.unsqueeze(-1)
        gradient.scatter_add_(-1, local_targets.unsqueeze(-1), -is_here.to(gradient.dtype).unsqueeze(-1))
        return gradient.mul_(gradients[0]), None, None
