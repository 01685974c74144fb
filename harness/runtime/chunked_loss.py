"""Head and loss in chunks of tokens: logits of a whole micro-batch never exist.

Gradients are computed with the loss, chunk by chunk, inside the head's own forward. So ZeRO-3 has the head's weight
gathered by its usual hooks, and the backward pass needs nothing of the vocabulary's size but the weight's gradient.
Where AutoTP has cut the head, every tensor rank computes the logits of its own words, and three numbers a token are
exchanged instead of all logits.
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

from harness.runtime.batch import IGNORED

_STRAIGHT = re.compile(
    r"logits = self\.(\w+)\(hidden_states(?:\[[^\]]*\])?\)\s+loss = None\s+if labels is not None:\s+"
    r"(?:#[^\n]*\s+)*loss = self\.loss_function\("
)
"""A forward that hands the head's output to its loss as it is: no soft cap, no scale, nothing in between."""
_CUT = tuple(getattr(layers, name) for name in ("LinearLayer", "VocabParallelLinear") if hasattr(layers, name))
"""What AutoTP makes of a head whose rows, the words, it cuts. `VocabParallelLinear` (0.19.8) keeps its logits apart."""
_ROWS = 16_384
"""Words of the vocabulary whose gradients are added up at once, where that needs a copy."""


@dataclass(frozen=True, slots=True)
class Words:
    """The part of the vocabulary that a tensor rank has: the rows of its weight, from `first` on."""

    first: int
    group: Any

    def largest(self, values: torch.Tensor) -> None:
        """In place, over the tensor ranks."""
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)

    def sum(self, values: torch.Tensor) -> None:
        """In place, over the tensor ranks."""
        dist.all_reduce(values, group=self.group)


class ChunkedHead:
    """Makes the head of one model compute the loss while it is `armed`; it is the plain head otherwise.

    `words`: which of them the weight of the head is of, where it is not all.
    """

    def __init__(self, model: Any, head: torch.nn.Module, chunk: int, words: Words | None = None) -> None:
        self._head, self._chunk, self._words = head, chunk, words
        self._targets: torch.Tensor | None = None
        self._items: float | None = None
        self._plain, self._loss = head.forward, model.loss_function
        head.forward = self._forward
        model.loss_function = self._of_logits

    def arm(self, labels: torch.Tensor, items: float | None) -> None:
        """The next forward of the model is of these labels (rows, length), not shifted. The loss is their sum over
        `items`, or the mean where that is None.
        """
        self.arm_shifted(pad(labels, (0, 1), value=IGNORED)[:, 1:], items)

    def arm_shifted(self, targets: torch.Tensor, items: float | None) -> None:
        """The same with the token that follows each, (rows, length). A model that is called without labels returns the
        loss in the place of its logits.
        """
        self._targets, self._items = targets, items

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(rows, length, hidden size) -> logits, or the loss, a scalar in fp32."""
        targets, self._targets = self._targets, None
        if targets is None:
            return self._plain(hidden)
        targets = targets.flatten()
        items = (targets != IGNORED).sum() if self._items is None else self._items
        return chunked_loss(hidden.flatten(0, 1), self._head.weight, targets, items, self._chunk, self._words)

    def _of_logits(self, logits: torch.Tensor, labels: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        """What the model calls its loss: the head has computed it already, or computes logits."""
        return logits if logits.dim() == 0 else self._loss(logits, labels, *args, **named)


def chunk_head(engine: Any, chunk: int) -> ChunkedHead | str:
    """Have the model of an engine compute its loss in chunks of so many tokens; or why it cannot."""
    module = engine.module
    model = module.get_base_model() if hasattr(module, "get_base_model") else module
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    why_not = _unfit_head(head) or _unfit_model(model, head) or _unfit_numbers(engine)
    return why_not or ChunkedHead(model, head, chunk, _words_of(head) if type(head) in _CUT else None)


def _unfit_head(head: Any) -> str:
    if type(head) not in (torch.nn.Linear, *_CUT) or head.bias is not None:
        return "its head is not a plain matrix, whole or cut by AutoTP over the words"
    known = type(head) not in _CUT or (hasattr(head, "_partition_sizes") and head.mp_group is not None)
    if not known or getattr(head, "defer_collectives_to_compiler", False):
        return "which words of its head each tensor rank has is not known"
    return ""


def _unfit_model(model: Any, head: Any) -> str:
    found = _STRAIGHT.search(inspect.getsource(type(model).forward))
    if found is None or getattr(model, found[1], None) is not head:
        return f"`{type(model).__name__}` does something with its logits before the loss"
    loss = getattr(model, "_deepspeed_original_loss_function", getattr(model, "loss_function", None))
    return "" if loss is ForCausalLMLoss else "its loss is not the usual one of causal language models"


def _unfit_numbers(engine: Any) -> str:
    if engine.torch_autocast_enabled():
        return "`torch_autocast` chooses the number format of the head"
    return "fp16 scales the loss before gradients are rounded" if engine.fp16_enabled() else ""


def _words_of(head: Any) -> Words:
    """Of a head that AutoTP has cut; `_partition_sizes` are the words of each tensor rank."""
    return Words(sum(head._partition_sizes[: head.tp_index]), head.mp_group)


def chunked_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    items: float | torch.Tensor,
    chunk: int,
    words: Words | None = None,
) -> torch.Tensor:
    """Sum of the cross entropies over `items`, a scalar in fp32, of hidden (tokens, size), weight (vocabulary, size)
    and targets (tokens,), of which `IGNORED` ones count for nothing. As `ForCausalLMLoss` in exact arithmetic.

    With `words` the weight is a tensor rank's; hidden states, targets and loss are the same on all of them.
    """
    wants = torch.is_grad_enabled()
    return _ChunkedLoss.apply(
        hidden, weight, targets, items, chunk, words, wants and hidden.requires_grad, wants and weight.requires_grad
    )


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        items: float | torch.Tensor,
        chunk: int,
        words: Words | None,
        for_hidden: bool,
        for_weight: bool,
    ) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        ctx.hidden = torch.empty_like(hidden) if for_hidden else None
        # Sums of 16-bit gradients are kept in fp32, as inside the one product that they replace.
        ctx.weight = torch.zeros_like(weight, dtype=torch.float32) if for_weight else None
        ctx.dtype = weight.dtype
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            loss, gradient = _one_chunk(hidden[part], weight, targets[part], words, for_hidden or for_weight)
            total += loss
            if gradient is None:
                continue
            gradient = gradient.div_(items).to(hidden.dtype)
            if ctx.hidden is not None:
                torch.matmul(gradient, weight, out=ctx.hidden[part])
            if ctx.weight is not None:
                _add_product(ctx.weight, gradient, hidden[part])
            del gradient
        if words is not None and ctx.hidden is not None:  # each rank has the part that its words give
            words.sum(ctx.hidden)
        return total / items

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


def _one_chunk(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, words: Words | None, differentiate: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sum of the losses, and their gradient by the logits (tokens, words of this rank), both in fp32."""
    logits = torch.matmul(hidden, weight.t()).float()
    counted = targets != IGNORED
    places = targets if words is None else targets - words.first
    here = counted if words is None else counted & (places >= 0) & (places < logits.shape[1])
    places = places.masked_fill(~here, 0)[:, None]
    largest = logits.amax(dim=1, keepdim=True)
    if words is not None:
        words.largest(largest)
    logits.sub_(largest)
    at_target = logits.gather(1, places).masked_fill_(~here[:, None], 0)
    sums = logits.exp_().sum(dim=1, keepdim=True)
    if words is not None:
        both = torch.cat((sums, at_target), dim=1)
        words.sum(both)
        sums, at_target = both.split(1, dim=1)
    loss = (sums.log() - at_target)[:, 0].masked_fill(~counted, 0).sum()
    if not differentiate:
        return loss, None
    gradient = logits.div_(sums)
    gradient.scatter_add_(1, places, -here.to(gradient.dtype)[:, None])
    return loss, gradient.masked_fill_(~counted[:, None], 0)


def _add_product(total: torch.Tensor, gradient: torch.Tensor, hidden: torch.Tensor) -> None:
    """total (vocabulary, size) += gradient (tokens, vocabulary) transposed x hidden (tokens, size)."""
    if hidden.dtype == torch.float32:
        total.addmm_(gradient.t(), hidden)
        return
    for start in range(0, total.shape[0], _ROWS):
        part = slice(start, start + _ROWS)
        total[part] += torch.matmul(gradient[:, part].t(), hidden)
