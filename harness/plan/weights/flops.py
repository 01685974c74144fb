# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of a model: those that a token or a step needs, and those that the hardware executes.

A matrix product of a weight with a token is 2 operations an element: forward, for the gradient of its input, and for
its own gradient. A pair of positions that attend costs 4 x heads x head size in each layer, twice that backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from harness.facts.model_facts import ModelFacts, once_a_model


@dataclass(frozen=True, slots=True)
class FlopsInputs:
    """The sizes that the counts below depend on.

    `matmul`: parameters that a token is multiplied with; `active`: all that it uses; `width`: heads x head size;
    `recomputed`: those of `matmul` that checkpointed layers compute once more; `down`: those of the last projections
    of the MLPs, which they do not.
    """

    matmul: float
    active: float
    layers: int
    width: int
    recomputed: float
    down: float = 0.0

    @staticmethod
    @once_a_model
    def from_model(model: ModelFacts) -> FlopsInputs:
        """The sizes of a known model. torch stops a checkpointed layer early, before the last projection of its MLP."""
        down_projections = model.num_layers * model.hidden * model.intermediate * (model.experts_per_token or 1)
        layers = model.matmul_parameters - model.vocab * model.hidden
        width = model.heads * model.head_dim
        return FlopsInputs(
            model.matmul_parameters,
            model.active_parameters,
            model.num_layers,
            width,
            max(0, layers - down_projections),
            down_projections,
        )


@dataclass(frozen=True, slots=True)
class GradientShares:
    """Shares of the multiplied parameters: those with a gradient of their own, and those that one goes through."""

    weight_grads: float = 1.0
    input_grads: float = 1.0


ALL_GRADIENTS = GradientShares()


class RecomputeShares(NamedTuple):
    """Shares of the layers whose forward pass runs twice: of their products with weights, and of their attention.

    `tiled_mlp`: products of a size of the down projection that MLPs in tiles compute once more.
    """

    layers: float = 1.0
    attention: float = 1.0
    tiled_mlp: float = 0.0


NO_RECOMPUTATION, FULL_RECOMPUTATION = RecomputeShares(0.0, 0.0), RecomputeShares()


def needed_flops(inputs: FlopsInputs, tokens: float, pairs: float, trained: GradientShares = ALL_GRADIENTS) -> float:
    """Operations of a step of `tokens` without padding, of which `pairs` attend to each other, over all layers: no
    recomputation, and no pair that a causal mask hides.
    """
    products = 2 * inputs.matmul * tokens * (1 + trained.input_grads + trained.weight_grads)
    return products + 4 * inputs.width * pairs * (1 + 2 * trained.input_grads)


def executed_flops(
    inputs: FlopsInputs,
    positions: float,
    pairs: float,
    trained: GradientShares = ALL_GRADIENTS,
    recomputed: RecomputeShares = NO_RECOMPUTATION,
) -> float:
    """Operations of a step of `positions` with padding, and of all `pairs` that its attention computes, masked ones
    too.
    """
    needed = needed_flops(inputs, positions, pairs, trained)
    products = inputs.recomputed * recomputed.layers + inputs.down * recomputed.tiled_mlp
    return needed + 2 * products * positions + 4 * inputs.width * pairs * recomputed.attention


def flops_6n(inputs: FlopsInputs, tokens: float) -> float:
    """6 N a token (Kaplan et al., arXiv 2001.08361), here with all active parameters, embeddings too; no attention."""
    return 6 * inputs.active * tokens


def hardware_flops_per_token(model: ModelFacts, sequence: int, recomputed: RecomputeShares) -> float:
    """Floating-point operations that the hardware executes for a token, forward and backward.

    6 a matmul parameter and 6 L a d s of causal attention (half of PaLM's 12). Checkpointing recomputes the layers,
    without the last projection of the MLP (torch stops early): 2 (N_layers - L h f), and the attention's forward.
    """
    return executed_flops(FlopsInputs.from_model(model), 1, model.num_layers * sequence / 2, recomputed=recomputed)


def model_flops_per_token(model: ModelFacts, sequence: int) -> float:
    """MFU counts 6 N + 12 L a d s, attention in full and nothing recomputed (PaLM, arXiv 2204.02311, appendix B).

    N is the active parameters that are multiplied with: no norms, no input embedding.
    """
    return 6 * model.matmul_parameters + 12 * model.num_layers * model.heads * model.head_dim * sequence
