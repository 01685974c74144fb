# SPDX-License-Identifier: Apache-2.0
"""The floating-point operations of a step: those that its rows need, and those that are executed.

A pure function of the rows' lengths, so that every rank has the figures of the whole step without communication.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from harness.facts.model_lookup import ModelFacts, ModelLookup, facts_from_config
from harness.plan.settings.checkpointed_layers import shares_of_layers
from harness.plan.weights.flops import (
    ALL_GRADIENTS,
    NO_RECOMPUTATION,
    FlopsInputs,
    GradientShares,
    RecomputeShares,
    executed_flops,
    flops_6n,
    needed_flops,
)
from harness.run.resolved_run import ResolvedRun
from harness.runtime.dataset.sampler import RowDataset
from harness.runtime.models.quantized_base import full_numel

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_MASK_SKIPPING_ATTENTION = ("sdpa_varlen", "flash_attention_2", "flash_attention_3", "flex_attention")
"""Attention that computes no masked pair: no padding, nothing between the documents of a packed row."""


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Counts of some rows: tokens without and with padding, and floating-point operations."""

    tokens: int
    positions: int
    model_flops: float
    hardware_flops: float
    flops_6n: float


@dataclass(frozen=True)
class FlopsCounter:
    """Counts the operations of one model on the rows of one dataset."""

    sequences: RowDataset
    facts: ModelFacts | None
    sizes: FlopsInputs | None
    source: str
    layers_by_window: Mapping[int | None, int]
    """Attention window -> number of layers with it; None: the layer attends to all earlier positions."""
    attention: str
    trained_fractions: GradientShares = ALL_GRADIENTS
    recomputed: RecomputeShares = NO_RECOMPUTATION

    def count(self, rows: np.ndarray) -> BatchCounts:
        """Counts of rows (..., micro-batch). Each last axis is padded together. Rows of a stream are all alike."""
        if not self.sequences.is_plain_stream:
            return self._count_rows(rows)
        if rows.shape not in self._counts_by_shape:
            self._counts_by_shape[rows.shape] = self._count_rows(rows)
        return self._counts_by_shape[rows.shape]

    @cached_property
    def _counts_by_shape(self) -> dict[tuple[int, ...], BatchCounts]:
        return {}

    def _count_rows(self, rows: np.ndarray) -> BatchCounts:
        seq = self.sequences
        lengths = seq.lengths[rows]
        positions = self._padded_lengths(lengths)
        total = int(positions.sum()) * rows.shape[-1]
        tokens = int(lengths.sum())
        if self.sizes is None:
            return BatchCounts(tokens, total, 0.0, 0.0, 0.0)
        documents = seq.document_lengths(rows.reshape(-1))
        pairs = sum(count * _attention_pairs(documents, window) for window, count in self.layers_by_window.items())
        computed_pairs = self._computed_pairs(lengths, positions, documents)
        return BatchCounts(
            tokens,
            total,
            needed_flops(self.sizes, tokens, pairs, self.trained_fractions),
            executed_flops(self.sizes, total, computed_pairs, self.trained_fractions, self.recomputed),
            flops_6n(self.sizes, tokens),
        )

    def _padded_lengths(self, lengths: np.ndarray) -> np.ndarray:
        """The padded length of each micro-batch, without the last axis."""
        seq = self.sequences
        longest = (
            np.full(lengths.shape[:-1], seq.max_length)
            if seq.is_plain_stream or seq.is_packed
            else lengths.max(axis=-1)
        )
        return -(-longest // seq.pad_to_multiple_of) * seq.pad_to_multiple_of

    def _computed_pairs(self, lengths: np.ndarray, padded_lengths: np.ndarray, documents: np.ndarray) -> float:
        """Pairs over all layers that the attention computes. Without a mask, `sdpa` and flash kernels compute the pairs
        below the diagonal. With a mask (padding, several documents), and in `eager`, they compute the whole square.
        """
        if self.attention in _MASK_SKIPPING_ATTENTION:
            return float(
                sum(count * _attention_pairs(documents, window) for window, count in self.layers_by_window.items())
            )
        layers, rows, positions = (
            sum(self.layers_by_window.values()),
            lengths.shape[-1],
            padded_lengths.astype(np.float64),
        )
        has_mask = np.full(padded_lengths.shape, self.sequences.is_packed)
        if not self.sequences.is_packed:
            has_mask = (lengths != padded_lengths[..., None]).any(axis=-1)
        is_square = has_mask | (self.attention != "sdpa")
        return float(layers * rows * np.where(is_square, positions**2, positions * (positions + 1) / 2).sum())


def _attention_pairs(lengths: np.ndarray, window: int | None) -> float:
    """Pairs of positions in causal sequences of these lengths, at most `window` apart."""
    s = lengths.astype(np.float64)
    if window is None:
        return float((s * (s + 1) / 2).sum())
    ramp = np.minimum(s, window)
    return float((ramp * (ramp + 1) / 2 + (s - ramp) * window).sum())


def make_flops_counter(
    run: ResolvedRun, config: PreTrainedConfig | None, module: torch.nn.Module, sequences: RowDataset
) -> FlopsCounter:
    """The counter of the model of a `transformers` configuration; `module` is the model or a pipeline stage of it.
    Without a configuration it counts rows alone.
    """
    if config is None:
        return FlopsCounter(
            sequences, None, None, "a module without a configuration of transformers", {None: 0}, "sdpa"
        )
    text_config = config.get_text_config()
    lookup = facts_from_config(config.to_dict())
    sizes, source = _find_sizes(lookup, text_config, module)
    return FlopsCounter(
        sequences,
        lookup.facts,
        sizes,
        source,
        _count_layers_by_window(text_config),
        str(getattr(text_config, "_attn_implementation", None) or "sdpa"),
        _trained_fractions(module, is_whole_model=run.parallel_dims.pipeline == 1),
        _recompute_shares(run, text_config),
    )


def _recompute_shares(run: ResolvedRun, text_config: PreTrainedConfig) -> RecomputeShares:
    recomputed = run.checkpointing
    layers = -(-getattr(text_config, "num_hidden_layers", 1) // run.parallel_dims.pipeline)
    return shares_of_layers(
        layers,
        recomputed.recompute_every if recomputed else None,
        recomputed.layers_per_segment if recomputed else 1,
        keeps_attention=recomputed is not None and recomputed.keep == "attention",
        in_tiles=run.num_mlp_tiles > 1,
    )


def _find_sizes(
    lookup: ModelLookup, text_config: PreTrainedConfig, module: torch.nn.Module
) -> tuple[FlopsInputs | None, str]:
    """(sizes, source): from the model's family, else from the module if it has no experts; else (None, the reason)."""
    if lookup.facts is not None:
        return FlopsInputs.from_model(lookup.facts), f"the sizes of a {lookup.facts.family} model"
    try:
        layers, heads = (getattr(text_config, f"num_{name}", None) for name in ("hidden_layers", "attention_heads"))
    except RuntimeError:  # of a configuration with one number for each layer
        return None, lookup.why_not
    if any("expert" in name for name in text_config.to_dict()) or not layers or not heads:
        return None, lookup.why_not
    size = getattr(text_config, "head_dim", None) or text_config.hidden_size // heads
    matmul = float(sum(full_numel(p) for _, p in _matmul_parameters(module)))
    num_parameters = float(sum(full_numel(p) for p in module.parameters()))
    recomputed = max(0.0, matmul - text_config.vocab_size * text_config.hidden_size)
    return FlopsInputs(matmul, num_parameters, layers, heads * size, recomputed), "the parameters of the module"


def _matmul_parameters(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Matrices of matrix products, in the order of the module, without embeddings that are only looked up."""
    embedding_ids = {id(m.weight) for m in module.modules() if isinstance(m, torch.nn.Embedding)}
    linear_ids = {id(m.weight) for m in module.modules() if isinstance(m, torch.nn.Linear)}
    return [
        (name, p)
        for name, p in module.named_parameters()
        if len(getattr(p, "ds_shape", p.shape)) > 1 and (id(p) not in embedding_ids or id(p) in linear_ids)
    ]


def _trained_fractions(module: torch.nn.Module, *, is_whole_model: bool) -> GradientShares:
    """Shares of the gradients that are computed. Frozen matrices have no weight gradient, and those before the first
    trainable one have no input gradient either.
    """
    matrices = _matmul_parameters(module)
    total = sum(full_numel(p) for _, p in matrices)
    if total == 0 or all(p.requires_grad for p in module.parameters()):
        return ALL_GRADIENTS
    trainable = sum(full_numel(p) for _, p in matrices if p.requires_grad)
    frozen_before, has_trainable, matrix_ids = 0, not is_whole_model, {id(p) for _, p in matrices}
    for p in module.parameters():
        has_trainable = has_trainable or p.requires_grad
        frozen_before += full_numel(p) if not has_trainable and id(p) in matrix_ids else 0
    return GradientShares(trainable / total, 1 - frozen_before / total)


def _count_layers_by_window(text_config: PreTrainedConfig) -> dict[int | None, int]:
    """The number of layers by attention window."""
    layers, window = int(getattr(text_config, "num_hidden_layers", 0)), getattr(text_config, "sliding_window", None)
    layer_types = getattr(text_config, "layer_types", None)
    if not window or getattr(text_config, "use_sliding_window", True) is False:
        return {None: layers}
    if not layer_types:
        return {window: layers}
    return dict(Counter(window if layer_type == "sliding_attention" else None for layer_type in layer_types))
