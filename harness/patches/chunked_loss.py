# SPDX-License-Identifier: Apache-2.0
"""Computes head and loss of a `transformers` model in chunks of tokens, without the logits of a whole micro-batch.

Upstream: `transformers` computes the logits of all tokens, copies them to fp32 and passes them to its loss, which keeps
them for the backward pass. DeepSpeed's `install_chunked_causal_lm_loss` keeps all logits, too; its
`TiledFusedLogitsLoss` runs the backward pass of the weight, with its hooks, inside the forward pass, before the loss is
scaled (both read in 0.19.8, not run).

Patch: The forward of the head returns the loss, and the model's loss function passes it on. The gradients are computed
with it, chunk by chunk, inside the head's forward (`runtime/chunked_cross_entropy.py`), so that ZeRO-3 gathers the
head's weight by its usual hooks. Where AutoTP has split the head, each tensor rank computes the logits of its
vocabulary shard.

Gain: The logits of `train.loss_chunk_size` tokens instead of those of a micro-batch, in fp32 and twice; `harness plan`
shows the difference, `tests/training/models/test_chunked_loss.py` measures it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.patches.patch_registry import Patch, Target

if TYPE_CHECKING:
    import torch

_IGNORE_INDEX = -100
"""The label that `ForCausalLMLoss` leaves out."""
_UNSCALED_LOGITS_FORWARD = re.compile(
    r"logits = self\.(\w+)\(hidden_states(?:\[[^\]]*\])?\)\s+loss = None\s+if labels is not None:\s+"
    r"(?:#[^\n]*\s+)*loss = self\.loss_function\("
)
"""A forward that hands the head's output to its loss unchanged: no soft cap, no scale."""


class VocabShard(NamedTuple):
    """A tensor rank's part of the vocabulary: the rows of its weight, from `start` on, and the group of the ranks."""

    start: int
    group: Any


LossFunction = Callable[..., "torch.Tensor"]
"""(hidden (tokens, size), weight (vocabulary, size), targets (tokens,), num_items, chunk, `VocabShard` or None) -> the
sum of the token losses over `num_items`, a scalar in fp32.
"""
TokenLossFunction = Callable[..., "torch.Tensor"]
"""(hidden, weight, targets, chunk) -> the loss of each token, (tokens,) in fp32."""


class ChunkedHead:
    """Makes the head of one model compute the loss once labels are set; otherwise it is the plain head.

    `compute_loss` computes it from chunks of so many tokens; `vocab_shard` is the part of the vocabulary in the head's
    weight, None for all of it.
    """

    def __init__(
        self,
        model: Any,
        head: torch.nn.Module,
        chunk: int,
        compute_loss: LossFunction,
        vocab_shard: VocabShard | None = None,
    ) -> None:
        self._head, self._chunk, self._compute_loss, self._vocab_shard = head, chunk, compute_loss, vocab_shard
        self._targets: torch.Tensor | None = None
        self._compute_token_losses: TokenLossFunction | None = None
        self._num_items: float | None = None
        self._original_forward, self._original_loss = head.forward, model.loss_function
        head.forward = self._forward
        model.loss_function = self._loss_from_logits

    def set_labels(self, labels: torch.Tensor, num_items: float | None) -> None:
        """Labels (rows, length) of the next forward, not shifted. The loss is their sum over `num_items`, or the mean
        where that is None.
        """
        from torch.nn.functional import pad

        self.set_shifted_labels(pad(labels, (0, 1), value=_IGNORE_INDEX)[:, 1:], num_items)

    def set_shifted_labels(self, targets: torch.Tensor, num_items: float | None) -> None:
        """The same with shifted labels, the next token of each, (rows, length). A model that is called without labels
        returns the loss in place of its logits.
        """
        self._targets, self._num_items = targets, num_items

    def set_token_targets(self, targets: torch.Tensor, compute_losses: TokenLossFunction) -> None:
        """Shifted labels of the next forward, which is one without labels: it returns the loss of each token, (rows,
        length) in fp32, in place of its logits.
        """
        self._targets, self._compute_token_losses = targets, compute_losses

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(rows, length, hidden size) -> logits, or the loss, a scalar in fp32, or the loss of each token."""
        targets, self._targets = self._targets, None
        if targets is None:
            return self._original_forward(hidden)  # type: ignore[no-any-return]
        compute_token_losses, self._compute_token_losses = self._compute_token_losses, None
        if compute_token_losses is not None:
            losses = compute_token_losses(hidden.flatten(0, 1), self._head.weight, targets.flatten(), self._chunk)
            return losses.view(targets.shape)
        targets = targets.flatten()
        items = (targets != _IGNORE_INDEX).sum() if self._num_items is None else self._num_items
        weight = self._head.weight
        return self._compute_loss(hidden.flatten(0, 1), weight, targets, items, self._chunk, self._vocab_shard)

    def _loss_from_logits(self, logits: torch.Tensor, labels: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The model's loss function: returns the head's loss, or computes it from logits."""
        if logits.dim() == 0:
            return logits
        return self._original_loss(logits, labels, *args, **kwargs)  # type: ignore[no-any-return]


def install_chunked_loss(engine: Any, chunk: int, compute_loss: LossFunction) -> ChunkedHead | str:
    """Make the model of an engine compute its loss in chunks of so many tokens; or return why it cannot."""
    module = engine.module
    model = module.get_base_model() if hasattr(module, "get_base_model") else module
    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    why_not = _why_head_unsupported(head) or _why_model_unsupported(model, head) or _why_precision_unsupported(engine)
    return why_not or ChunkedHead(model, head, chunk, compute_loss, _vocab_shard_of(head))


def _why_head_unsupported(head: Any) -> str:
    import torch

    if type(head) not in (torch.nn.Linear, *_tensor_parallel_heads()) or head.bias is not None:
        return "its head is not a plain matrix, whole or sharded by AutoTP over the vocabulary"
    has_known_shards = type(head) is torch.nn.Linear or (
        hasattr(head, "_partition_sizes") and head.mp_group is not None
    )
    if not has_known_shards or getattr(head, "defer_collectives_to_compiler", False):
        return "the vocabulary shard of each tensor rank is not known"
    return ""


def _tensor_parallel_heads() -> tuple[type, ...]:
    """Heads that AutoTP has split by rows, the vocabulary. `VocabParallelLinear` does not gather its logits."""
    from deepspeed.module_inject import layers

    return layers.LinearLayer, layers.VocabParallelLinear


def _why_model_unsupported(model: Any, head: Any) -> str:
    from transformers.loss.loss_utils import ForCausalLMLoss

    match = _UNSCALED_LOGITS_FORWARD.search(inspect.getsource(type(model).forward))
    if match is None or getattr(model, match[1], None) is not head:
        return f"`{type(model).__name__}` changes its logits before the loss"
    loss = getattr(model, "_deepspeed_original_loss_function", getattr(model, "loss_function", None))
    if loss is not ForCausalLMLoss or not _is_token_cross_entropy(loss):
        return "its loss is not the usual one of causal language models"
    return ""


def _is_token_cross_entropy(loss: LossFunction) -> bool:
    """Does a loss of `transformers` shift the labels, leave out -100 and divide the sum by the number of items? Asked
    of a small example, since its releases are not bounded.
    """
    import torch
    from torch.nn.functional import cross_entropy

    logits, labels = torch.arange(15.0).sin().reshape(1, 5, 3), torch.tensor([[0, 2, _IGNORE_INDEX, 1, 0]])
    expected = cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=_IGNORE_INDEX, reduction="sum") / 7
    return torch.allclose(loss(logits, labels, vocab_size=3, num_items_in_batch=7), expected)


def _why_precision_unsupported(engine: Any) -> str:
    if engine.torch_autocast_enabled():
        return "`torch_autocast` chooses the number format of the head"
    return "fp16 scales the loss before gradients are rounded" if engine.fp16_enabled() else ""


def _vocab_shard_of(head: Any) -> VocabShard | None:
    """Of a head that AutoTP has split; `_partition_sizes` are the rows of each tensor rank."""
    if type(head) not in _tensor_parallel_heads():
        return None
    return VocabShard(sum(head._partition_sizes[: head.tp_index]), head.mp_group)


_LAYERS = "deepspeed.module_inject.layers"

PATCH = Patch(
    name="chunked-loss",
    kind="memory",
    targets=(
        Target("transformers.loss.loss_utils:ForCausalLMLoss", "4ecfe446876fe60c"),
        Target("transformers.modeling_utils:PreTrainedModel.loss_function", "edff2dfa858b06a1"),
        Target(f"{_LAYERS}:LinearLayer.forward", "565bf7a783d5afd3"),
        Target(f"{_LAYERS}:VocabParallelLinear", "5fe8efc4dc99b5e8"),
        Target(f"{_LAYERS}:TensorParallel_Layer._freeze_partition_sizes", "9b9f5449242cb5c1"),
    ),
    remove_when="`transformers` or DeepSpeed computes a causal language model's loss without the logits of all tokens",
    when="`train.loss_chunk_size` above 0, by choice or by default, without a pipeline",
    package="transformers",
    tested=("5.23.0", "5.24.0"),
    private_names=("_partition_sizes", "_deepspeed_original_loss_function"),
    is_needed=lambda run: run.loss_chunk_size > 0,
)
