# SPDX-License-Identifier: Apache-2.0
"""The cross entropy of hidden states and a head's weight in chunks of tokens, with its gradients.

Gradients are computed with the loss: the backward pass needs nothing of the vocabulary's size but the weight's
gradient. With a vocabulary shard on every tensor rank, three numbers a token are exchanged instead of all logits.
The patch `chunked-loss` puts it in the place of a model's head and loss.
"""

from __future__ import annotations

from typing import Any

import deepspeed.comm as dist
import torch
from torch.autograd.function import once_differentiable

from harness.patches.chunked_loss import VocabShard
from harness.runtime.micro_batch import IGNORE_INDEX

_VOCAB_ROWS_AT_ONCE = 16_384
"""Rows of the vocabulary whose gradients are added at once, where that needs a copy."""


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    num_items: float | torch.Tensor,
    chunk: int,
    vocab_shard: VocabShard | None = None,
) -> torch.Tensor:
    """Sum of the cross entropies over `num_items`, a scalar in fp32, of hidden (tokens, size), weight (vocabulary,
    size) and targets (tokens,), without `IGNORE_INDEX`. As `ForCausalLMLoss` in exact arithmetic.

    With `vocab_shard` the weight is a tensor rank's; hidden states, targets and loss are the same on all of them.
    """
    grad_enabled = torch.is_grad_enabled()
    loss: torch.Tensor = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden,
        weight,
        targets,
        num_items,
        chunk,
        vocab_shard,
        grad_enabled and hidden.requires_grad,
        grad_enabled and weight.requires_grad,
    )
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        num_items: float | torch.Tensor,
        chunk: int,
        vocab_shard: VocabShard | None,
        for_hidden: bool,
        for_weight: bool,
    ) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        ctx.hidden = torch.empty_like(hidden) if for_hidden else None
        # Sums of 16-bit gradients are in fp32, as inside the one product that they replace.
        ctx.weight = torch.zeros_like(weight, dtype=torch.float32) if for_weight else None
        ctx.dtype = weight.dtype
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            loss, gradient = _compute_chunk(hidden[part], weight, targets[part], vocab_shard, for_hidden or for_weight)
            total += loss.sum()
            if gradient is None:
                continue
            gradient = gradient.div_(num_items).to(hidden.dtype)
            if ctx.hidden is not None:
                torch.matmul(gradient, weight, out=ctx.hidden[part])
            if ctx.weight is not None:
                _add_product(ctx.weight, gradient, hidden[part])
            del gradient
        if vocab_shard is not None and ctx.hidden is not None:  # each rank has its shard's part
            dist.all_reduce(ctx.hidden, group=vocab_shard.group)
        return total / num_items

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight = ctx.hidden, ctx.weight
        ctx.hidden = ctx.weight = None
        if hidden is not None:
            hidden.mul_(scale)
        if weight is not None:
            weight = weight.mul_(scale).to(ctx.dtype)
        return hidden, weight, None, None, None, None, None, None


def chunked_token_losses(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunk: int) -> torch.Tensor:
    """The cross entropy of each token, (tokens,) in fp32 and 0 at `IGNORE_INDEX`; arguments as above.

    Whoever weighs the tokens knows the weights after the last of them: the backward pass computes the logits again.
    """
    losses: torch.Tensor = _ChunkedTokenLosses.apply(hidden, weight, targets, chunk)  # type: ignore[no-untyped-call]
    return losses


class _ChunkedTokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunk: int
    ) -> torch.Tensor:
        log_sums, losses = torch.empty(2, len(targets), 1, dtype=torch.float32, device=hidden.device)
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            logits = torch.matmul(hidden[part], weight.t()).float()
            target_logits = logits.gather(1, targets[part, None].clamp(min=0))
            max_logits = logits.amax(dim=1, keepdim=True)
            log_sums[part] = logits.sub_(max_logits).exp_().sum(dim=1, keepdim=True).log_().add_(max_logits)
            losses[part] = log_sums[part] - target_logits
        ctx.save_for_backward(hidden, weight, targets, log_sums)
        ctx.chunk = chunk
        return torch.where(targets == IGNORE_INDEX, 0, losses[:, 0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, log_sums = ctx.saved_tensors
        for_hidden, for_weight = ctx.needs_input_grad[:2]
        hidden_gradient = torch.empty_like(hidden) if for_hidden else None
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if for_weight else None
        scale = scale.masked_fill(targets == IGNORE_INDEX, 0)[:, None]
        for start in range(0, len(targets), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            gradient = torch.matmul(hidden[part], weight.t()).float().sub_(log_sums[part]).exp_()
            indices = targets[part, None].clamp(min=0)
            gradient.scatter_add_(1, indices, torch.full_like(log_sums[part], -1))
            gradient = gradient.mul_(scale[part]).to(hidden.dtype)
            if hidden_gradient is not None:
                torch.matmul(gradient, weight, out=hidden_gradient[part])
            if weight_gradient is not None:
                _add_product(weight_gradient, gradient, hidden[part])
        return hidden_gradient, None if weight_gradient is None else weight_gradient.to(weight.dtype), None, None


def _compute_chunk(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    vocab_shard: VocabShard | None,
    differentiate: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The loss of each token, and its gradient by the logits (tokens, vocabulary of this rank), both in fp32."""
    logits = torch.matmul(hidden, weight.t()).float()
    is_target = targets != IGNORE_INDEX
    indices = targets if vocab_shard is None else targets - vocab_shard.start
    is_local = is_target if vocab_shard is None else is_target & (indices >= 0) & (indices < logits.shape[1])
    indices = indices.masked_fill(~is_local, 0)[:, None]
    max_logits = logits.amax(dim=1, keepdim=True)
    if vocab_shard is not None:
        dist.all_reduce(max_logits, op=dist.ReduceOp.MAX, group=vocab_shard.group)
    logits.sub_(max_logits)
    target_logits = logits.gather(1, indices).masked_fill_(~is_local[:, None], 0)
    sums = logits.exp_().sum(dim=1, keepdim=True)
    if vocab_shard is not None:
        sums_and_logits = torch.cat((sums, target_logits), dim=1)
        dist.all_reduce(sums_and_logits, group=vocab_shard.group)
        sums, target_logits = sums_and_logits[:, :1], sums_and_logits[:, 1:]
    loss = (sums.log() - target_logits)[:, 0].masked_fill(~is_target, 0)
    if not differentiate:
        return loss, None
    gradient = logits.div_(sums)
    gradient.scatter_add_(1, indices, -is_local.to(gradient.dtype)[:, None])
    return loss, gradient.masked_fill_(~is_target[:, None], 0)


def _add_product(total: torch.Tensor, gradient: torch.Tensor, hidden: torch.Tensor) -> None:
    """total (vocabulary, size) += gradient (tokens, vocabulary) transposed x hidden (tokens, size)."""
    if hidden.dtype == torch.float32:
        total.addmm_(gradient.t(), hidden)
        return
    for start in range(0, total.shape[0], _VOCAB_ROWS_AT_ONCE):
        part = slice(start, start + _VOCAB_ROWS_AT_ONCE)
        total[part] += torch.matmul(gradient[:, part].t(), hidden)
