"""Head and loss in chunks of tokens: logits of a whole micro-batch never exist.

Gradients are computed with the loss, chunk by chunk, inside the head's own forward. So ZeRO-3
gathers the head's weight by its usual hooks, and the backward pass needs nothing of the vocabulary's size but the
weight's gradient. Where AutoTP has split the head, every tensor rank computes the logits of its vocabulary shard, and
three numbers a token are exchanged instead of all logits.
DeepSpeed's `install_chunked_causal_lm_loss` keeps all logits; its `TiledFusedLogitsLoss` runs the backward pass of the
weight, with its hooks, inside the forward pass, before the loss is scaled (both read in 0.19.8, not run).
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

import deepspeed.comm as dist
import torch
from deepspeed.module_inject import layers
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad
from transformers.loss.loss_utils import ForCausalLMLoss

from harness.runtime.micro_batch import IGNORE_INDEX

_UNSCALED_LOGITS_FORWARD = re.compile(
    r"logits = self\.(\w+)\(hidden_states(?:\[[^\]]*\])?\)\s+loss = None\s+if labels is not None:\s+"
    r"(?:#[^\n]*\s+)*loss = self\.loss_function\("
)
"""A forward that hands the head's output to its loss unchanged: no soft cap, no scale."""
_TENSOR_PARALLEL_HEADS = tuple(
    getattr(layers, name) for name in ("LinearLayer", "VocabParallelLinear") if hasattr(layers, name)
)
"""Heads that AutoTP has split by rows, the vocabulary. `VocabParallelLinear` (0.19.8) does not gather its logits."""
_VOCAB_ROWS_AT_ONCE = 16_384
"""Rows of the vocabulary whose gradients are added at once, where that needs a copy."""


@dataclass(frozen=True, slots=True)
class VocabShard:
    """A tensor rank's part of the vocabulary: the rows of its weight, from `start` on."""

    start: int
    group: Any

    def all_reduce_max(self, values: torch.Tensor) -> None:
        """In place, over the tensor ranks."""
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)

    def all_reduce_sum(self, values: torch.Tensor) -> None:
        """In place, over the tensor ranks."""
        dist.all_reduce(values, group=self.group)


class ChunkedHead:
    """Makes the head of one model compute the loss once labels are set; otherwise it is the plain head.

    `vocab_shard` is the part of the vocabulary in the head's weight, None for all of it.
    """

    def __init__(self, model: Any, head: torch.nn.Module, chunk: int, vocab_shard: VocabShard | None = None) -> None:
        self._head, self._chunk, self._vocab_shard = head, chunk, vocab_shard
        self._targets: torch.Tensor | None = None
        self._num_items: float | None = None
        self._original_forward, self._original_loss = head.forward, model.loss_function
        head.forward = self._forward
        model.loss_function = self._loss_from_logits

    def set_labels(self, labels: torch.Tensor, num_items: float | None) -> None:
        """Labels (rows, length) of the next forward, not shifted. The loss is their sum over `num_items`, or the mean
        where that is None.
        """
        self.set_shifted_labels(pad(labels, (0, 1), value=IGNORE_INDEX)[:, 1:], num_items)

    def set_shifted_labels(self, targets: torch.Tensor, num_items: float | None) -> None:
        """The same with shifted labels, the next token of each, (rows, length). A model that is called without labels
        returns the loss in place of its logits.
        """
        self._targets, self._num_items = targets, num_items

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(rows, length, hidden size) -> logits, or the loss, a scalar in fp32."""
        targets, self._targets = self._targets, None
        if targets is None:
            return self._original_forward(hidden)
        targets = targets.flatten()
        items = (targets != IGNORE_INDEX).sum() if self._num_items is None else self._num_items
        return chunked_loss(hidden.flatten(0, 1), self._head.weight, targets, items, self._chunk, self._vocab_shard)

    def _loss_from_logits(self, logits: torch.Tensor, labels: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The model's loss function: returns the head's loss, or computes it from logits."""
        return logits if logits.dim() == 0 else self._original_loss(logits, labels, *args, **kwargs)


def install_chunked_loss(engine: Any, chunk: int) -> ChunkedHead | str:
    """Make the model of an engine compute its loss in chunks of so many tokens; or return why it cannot."""
    module = engine.module
    model = module.get_base_model() if hasattr(module, "get_base_model") else module
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    why_not = _why_head_unsupported(head) or _why_model_unsupported(model, head) or _why_precision_unsupported(engine)
    return why_not or ChunkedHead(
        model, head, chunk, _vocab_shard_of(head) if type(head) in _TENSOR_PARALLEL_HEADS else None
    )


def _why_head_unsupported(head: Any) -> str:
    if type(head) not in (torch.nn.Linear, *_TENSOR_PARALLEL_HEADS) or head.bias is not None:
        return "its head is not a plain matrix, whole or cut by AutoTP over the words"
    has_known_shards = type(head) not in _TENSOR_PARALLEL_HEADS or (
        hasattr(head, "_partition_sizes") and head.mp_group is not None
    )
    if not has_known_shards or getattr(head, "defer_collectives_to_compiler", False):
        return "which words of its head each tensor rank has is not known"
    return ""


def _why_model_unsupported(model: Any, head: Any) -> str:
    match = _UNSCALED_LOGITS_FORWARD.search(inspect.getsource(type(model).forward))
    if match is None or getattr(model, match[1], None) is not head:
        return f"`{type(model).__name__}` does something with its logits before the loss"
    loss = getattr(model, "_deepspeed_original_loss_function", getattr(model, "loss_function", None))
    return "" if loss is ForCausalLMLoss else "its loss is not the usual one of causal language models"


def _why_precision_unsupported(engine: Any) -> str:
    if engine.torch_autocast_enabled():
        return "`torch_autocast` chooses the number format of the head"
    return "fp16 scales the loss before gradients are rounded" if engine.fp16_enabled() else ""


def _vocab_shard_of(head: Any) -> VocabShard:
    """Of a head that AutoTP has split; `_partition_sizes` are the rows of each tensor rank."""
    return VocabShard(sum(head._partition_sizes[: head.tp_index]), head.mp_group)


def chunked_loss(
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
    return _ChunkedLoss.apply(
        hidden,
        weight,
        targets,
        num_items,
        chunk,
        vocab_shard,
        grad_enabled and hidden.requires_grad,
        grad_enabled and weight.requires_grad,
    )


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
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
            loss, gradient = _compute_chunk_loss(
                hidden[part], weight, targets[part], vocab_shard, for_hidden or for_weight
            )
            total += loss
            if gradient is None:
                continue
            gradient = gradient.div_(num_items).to(hidden.dtype)
            if ctx.hidden is not None:
                torch.matmul(gradient, weight, out=ctx.hidden[part])
            if ctx.weight is not None:
                _add_product(ctx.weight, gradient, hidden[part])
            del gradient
        if vocab_shard is not None and ctx.hidden is not None:  # each rank has its shard's part
            vocab_shard.all_reduce_sum(ctx.hidden)
        return total / num_items

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        hidden, weight = ctx.hidden, ctx.weight
        ctx.hidden = ctx.weight = None
        if hidden is not None:
            hidden.mul_(scale)
        if weight is not None:
            weight = weight.mul_(scale).to(ctx.dtype)
        return hidden, weight, None, None, None, None, None, None


def _compute_chunk_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    vocab_shard: VocabShard | None,
    differentiate: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sum of the losses, and their gradient by the logits (tokens, vocabulary of this rank), both in fp32."""
    logits = torch.matmul(hidden, weight.t()).float()
    is_target = targets != IGNORE_INDEX
    indices = targets if vocab_shard is None else targets - vocab_shard.start
    is_local = is_target if vocab_shard is None else is_target & (indices >= 0) & (indices < logits.shape[1])
    indices = indices.masked_fill(~is_local, 0)[:, None]
    max_logits = logits.amax(dim=1, keepdim=True)
    if vocab_shard is not None:
        vocab_shard.all_reduce_max(max_logits)
    logits.sub_(max_logits)
    target_logits = logits.gather(1, indices).masked_fill_(~is_local[:, None], 0)
    sums = logits.exp_().sum(dim=1, keepdim=True)
    if vocab_shard is not None:
        sums_and_logits = torch.cat((sums, target_logits), dim=1)
        vocab_shard.all_reduce_sum(sums_and_logits)
        sums, target_logits = sums_and_logits.split(1, dim=1)
    loss = (sums.log() - target_logits)[:, 0].masked_fill(~is_target, 0).sum()
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
