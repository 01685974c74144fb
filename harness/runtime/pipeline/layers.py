# SPDX-License-Identifier: Apache-2.0
"""The layers of a pipeline: thin wrappers around the modules of `transformers`, which keep all their own code.

Layers pass on (hidden states, positions). `positions` is int64 (rows, length): the position ids, which
restart where rows hold several documents, and -1 - position at padding. Every stage makes masks and rotary embeddings
from them by the functions that the whole model calls, so that neither goes through the pipe.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from harness.runtime.micro_batch import MicroBatch
from harness.runtime.pipeline.tensor_region import enter_tensor_region
from harness.runtime.pipeline.vocabulary_parallel import VocabularyParallelEmbedding

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_NO_CACHE = {"cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values": None}
"""`transformers` 5.24 has renamed the argument, and warns of the old name."""
LayerTensors = tuple[torch.Tensor, torch.Tensor]
"""Hidden states (rows, length, hidden), or token ids (rows, length) before the embedding; and positions."""


def encode_positions(batch: MicroBatch) -> torch.Tensor:
    """The positions that go with the hidden states, on the host."""
    ids = batch.position_ids
    if ids is None:
        ids = torch.arange(batch.input_ids.shape[1]).expand(batch.input_ids.shape)
    if batch.attention_mask is None:
        return ids.contiguous()
    return torch.where(batch.attention_mask.bool(), ids, -1 - ids)


class SharedInputs:
    """Inputs of every decoder layer of a stage other than the hidden states; created once for each micro-batch."""

    def __init__(self, config: PreTrainedConfig) -> None:
        self._config = config
        self._is_padded = self._is_packed = True
        self._positions: torch.Tensor | None = None
        self._cache: dict[str, Any] = {}

    def start_step(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Note from the host's tensors if rows are padded or packed: a stage that read it from the positions would wait
        for its device in each forward and in each recomputation.
        """
        self._is_padded = any(batch.attention_mask is not None for batch in micro_batches)
        self._is_packed = any(batch.position_ids is not None for batch in micro_batches)
        self._positions, self._cache = None, {}

    def update(self, hidden: torch.Tensor, positions: torch.Tensor) -> None:
        """Switch to this micro-batch, unless it is the current one."""
        if positions is self._positions:
            return
        padding = positions < 0
        ids = torch.where(padding, -1 - positions, positions)
        attended = (~padding).long() if self._is_padded else None
        if attended is not None and self._is_packed and not bool(padding.any()):  # no dataset has both in a step
            attended = None
        self._positions, self._cache = positions, {"ids": ids, "attended": attended, "like": hidden.detach()}

    @property
    def position_ids(self) -> torch.Tensor:
        """int64 (rows, length)."""
        ids: torch.Tensor = self._cache["ids"]
        return ids

    def attention_mask(self, kind: str) -> Any:
        """The mask of `transformers` for this kind of layer; None where its attention needs none. `transformers` looks
        for documents in position ids, which waits for the device.
        """
        if kind not in self._cache:
            create_mask = create_sliding_window_causal_mask if kind == "sliding_attention" else create_causal_mask
            self._cache[kind] = create_mask(
                config=self._config,
                inputs_embeds=self._cache["like"],
                attention_mask=self._cache["attended"],
                position_ids=self.position_ids if self._is_packed else None,
                **_NO_CACHE,
            )
        return self._cache[kind]

    def position_embeddings(self, rotary: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of each position, in the number format of the hidden states."""
        if "rotary" not in self._cache:
            self._cache["rotary"] = rotary(self._cache["like"], position_ids=self.position_ids)
        pair: tuple[torch.Tensor, torch.Tensor] = self._cache["rotary"]
        return pair


class Embedding(nn.Module):
    """Token ids to hidden states."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: LayerTensors) -> LayerTensors:
        """(ids, positions) to (hidden states, positions)."""
        ids, positions = inputs
        return self.module(ids), positions


class PositionEmbedding(nn.Module):
    """Learned position embeddings added to those of the tokens, and dropout."""

    def __init__(self, module: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.module, self.dropout = module, dropout

    def forward(self, inputs: LayerTensors) -> LayerTensors:
        """Hidden states with their positions in them."""
        hidden, positions = inputs
        ids = torch.where(positions < 0, -1 - positions, positions)
        return self.dropout(hidden + self.module(ids)), positions


class Decoder(nn.Module):
    """One decoder layer."""

    def __init__(self, module: nn.Module, rotary: nn.Module | None, shared_inputs: SharedInputs, mask: str) -> None:
        super().__init__()
        self.module, self.rotary = module, rotary
        self._shared_inputs, self._mask = shared_inputs, mask

    def forward(self, inputs: LayerTensors) -> LayerTensors:
        """Attention and MLP."""
        hidden, positions = inputs
        shared = self._shared_inputs
        shared.update(hidden, positions)
        kwargs: dict[str, Any] = {
            "attention_mask": shared.attention_mask(self._mask),
            "position_ids": shared.position_ids,
        }
        if self.rotary is not None:
            kwargs["position_embeddings"] = shared.position_embeddings(self.rotary)
        return self.module(hidden, **kwargs), positions


class Norm(nn.Module):
    """The last norm; the positions end here."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: LayerTensors) -> torch.Tensor:
        """Hidden states for the head."""
        hidden: torch.Tensor = self.module(inputs[0])
        return hidden


class Head(nn.Module):
    """Hidden states to logits."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (rows, length, vocabulary)."""
        logits: torch.Tensor = self.module(hidden)
        return logits


def apply_tied_head(embedding: Embedding, hidden: torch.Tensor) -> torch.Tensor:
    """The head whose weight is the embedding's."""
    weight: Any = embedding.module.weight
    if isinstance(embedding.module, VocabularyParallelEmbedding):
        hidden = enter_tensor_region(hidden, embedding.module.group)
    return functional.linear(hidden, weight)
