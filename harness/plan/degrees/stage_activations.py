# SPDX-License-Identifier: Apache-2.0
"""Activations of a layer, a head and a stage on one GPU, with the fused kernels that such runs have. Bytes.

The terms are those of arXiv 2205.05198 (section 4) for today's layers: a flash kernel keeps no scores, a fused norm
keeps its input, and there is no dropout. `harness.plan.memory.activation_bytes` has those of `transformers`,
which keep more.
"""

from __future__ import annotations

from harness.facts.model_lookup import ModelFacts
from harness.facts.model_parts import Parameters
from harness.plan.degrees.degrees_request import Checkpointing, DegreesRequest
from harness.plan.degrees.local_matrices import is_expert

_LOGSUMEXP = 4


def layer_activation_bytes(
    model: ModelFacts, layer: Parameters, request: DegreesRequest, checkpointing: Checkpointing
) -> float:
    """Bytes a token that a layer keeps from forward to backward.

    Two residuals and the two norm outputs (4 e h, divided with sequence parallelism), queries, keys, values and the
    output of attention, and the MLP's columns (3 of a gated one). Inputs of FP8 products are kept in FP8. `selective`
    computes the norms, the product of a gated MLP and latent attention's up-projections again (arXiv 2412.19437,
    section 3.2.3); `full` keeps the layer's input alone.
    """
    element, degrees = request.element_bytes, request.degrees
    if checkpointing == "full":
        return element * model.hidden / degrees.sequence_share
    product_input = 1 if request.precision == "fp8" else element
    is_selective = checkpointing == "selective"
    norms = 2 * element * model.hidden + (0 if is_selective else 2 * product_input * model.hidden)
    return (
        norms / degrees.sequence_share
        + _attention_bytes(model, element, product_input, is_selective) / degrees.tensor
        + _mlp_bytes(model, layer, element, product_input, is_selective) / degrees.tensor
    )


def _attention_bytes(model: ModelFacts, element: int, product_input: int, is_selective: bool) -> float:
    logsumexp = _LOGSUMEXP * model.heads
    if model.latent is None:
        width, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        return element * (width + 2 * keys) + product_input * width + logsumexp
    latent = model.latent
    low_rank = element * (latent.queries + latent.keys + latent.rope)
    heads = 2 * (latent.plain + latent.rope) + latent.value
    kept = 0 if is_selective else element * model.heads * heads + product_input * (latent.queries + latent.keys)
    return low_rank + kept + product_input * model.heads * latent.value + logsumexp


def _mlp_bytes(model: ModelFacts, layer: Parameters, element: int, product_input: int, is_selective: bool) -> float:
    """Columns of the MLP; of experts the tokens that arrive, K a token, their columns, and what the router keeps."""

    def columns(width: float, is_gated: bool) -> float:
        inputs, product = (2 if is_gated else 1) * element * width, product_input * width
        return inputs + (0 if is_selective and is_gated else product)

    gated = any(name in parameter.name for parameter in layer for name in ("gate_proj", "gate_up_proj"))
    if not any(is_expert(parameter) for parameter in layer):
        up = [parameter.shape for parameter in layer if parameter.name.endswith(("gate_proj.weight", "fc1.weight"))]
        return columns(up[0][0] if up else model.intermediate, gated)
    arrived = model.experts_per_token * (product_input * model.hidden + columns(model.intermediate, True))
    return arrived + columns(model.shared, True) + 4 * model.experts


def head_activation_bytes(model: ModelFacts, request: DegreesRequest) -> float:
    """Bytes a token at the loss: the final norm, the logits of this GPU's words and their softmax in fp32, which turns
    into the gradient in place (Megatron's vocabulary-parallel cross entropy).
    """
    degrees, element = request.degrees, request.element_bytes
    return 2 * element * model.hidden / degrees.sequence_share + (element + 4) * model.vocab / degrees.tensor
