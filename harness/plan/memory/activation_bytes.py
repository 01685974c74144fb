# SPDX-License-Identifier: Apache-2.0
"""Bytes that the forward pass keeps for the backward pass: layers, head, and their peaks. Per token of a micro-batch.

The formulas are those of `transformers` 5 modules in eager PyTorch, counted with saved-tensor hooks
(tests/training/plan/test_plan_activations.py); other kernels and compiled models keep less. Models
known from their built parameters alone are estimates. The rows that use these bytes are in
`harness.plan.memory.activation_items`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.facts.model_facts import ModelFacts, once_a_model
from harness.facts.model_parts import Parameters
from harness.plan.weights.trained_weights import LayerTraining, ModelTraining, saved_bytes_change

_BytesPerToken = tuple[float, float]
"""Bytes a token of a layer: what every tensor-parallel rank keeps, and what they divide."""


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """A micro-batch on one rank: its tokens, in sequences of `seq_length`; `element_bytes` an activation element.

    `tensor_parallel_size`: ranks that divide attention and MLP; norms and the inputs of linears are whole on each.
    `mlp_tile`: tokens of an MLP or a norm at once, in tiles; 0 for all. `splits_rows`: Ulysses gives each rank a part
    of every row, and whole rows of a part of the heads to the kernel. `mask_length`: where attention has a mask, of
    packed or of padded rows on a GPU, the positions that a token of this rank has in it, 0 without one.
    """

    tokens: int
    seq_length: int
    element_bytes: int
    attention: str = "sdpa"
    tensor_parallel_size: int = 1
    mask_length: int = 0
    mlp_tile: int = 0
    splits_rows: bool = False

    @property
    def mlp_tokens(self) -> int:
        """Tokens of an MLP at once: tiles are as equal as they can be."""
        if not self.mlp_tile:
            return self.tokens
        return -(-self.tokens // -(-self.tokens // self.mlp_tile))


def layer_bytes(
    model: ModelFacts,
    micro_batch: MicroBatchShape,
    layer: Parameters | None = None,
    training: LayerTraining | None = None,
) -> int:
    """Bytes that one decoder layer saves for backward, without checkpointing; by default the largest kind of layer, and
    trained whole.
    """
    layer = model.largest_layer if layer is None else layer
    if training is not None and not training.saves:
        return 0
    whole, divided = _FAMILIES.get(model.family, _llama_bytes)(model, micro_batch, layer)
    if training is not None:
        tiles, width = bool(micro_batch.mlp_tile), micro_batch.element_bytes
        changes = saved_bytes_change(model, layer, training, width, micro_batch.attention, tiles_norms=tiles)
        whole, divided = whole + changes[0], divided + changes[1]
    return round(micro_batch.tokens * (whole + divided / micro_batch.tensor_parallel_size))


def all_layer_bytes(
    model: ModelFacts, micro_batch: MicroBatchShape, count: int, training: ModelTraining | None = None
) -> list[int]:
    """Bytes that each of `count` layers saves: the heaviest ones where they differ, those first."""
    return sorted(layer_bytes_in_order(model, micro_batch, training), reverse=True)[:count]


@once_a_model
def layer_bytes_in_order(
    model: ModelFacts, micro_batch: MicroBatchShape, training: ModelTraining | None = None
) -> tuple[int, ...]:
    """Bytes that each layer of the model saves without checkpointing, in the order of the layers."""
    known: dict[tuple[int, LayerTraining | None], int] = {}
    sizes = []
    for index, layer in enumerate(model.layers):
        key = id(layer), training.layers[index] if training else None
        if key not in known:
            known[key] = layer_bytes(model, micro_batch, layer, key[1])
        sizes.append(known[key])
    return tuple(sizes)


def _llama_bytes(model: ModelFacts, micro_batch: MicroBatchShape, layer: Parameters) -> _BytesPerToken:
    """Llama, Mistral, Qwen, Phi-3 and their mixture-of-experts models: two RMS norms, attention, gated MLP."""
    each = (4 + micro_batch.element_bytes) * model.hidden + 4
    if micro_batch.mlp_tile:
        each = micro_batch.element_bytes * model.hidden
    norms = 2 * each + 2 * micro_batch.element_bytes * model.hidden
    heads = (
        (model.heads + model.kv_heads) * ((4 + micro_batch.element_bytes) * model.head_dim + 4)
        if model.family in ("qwen3", "qwen3_moe")
        else 0
    )
    attention = _latent_attention_bytes(model, micro_batch) if model.latent else _attention_bytes(model, micro_batch)
    if micro_batch.splits_rows:  # the output as the kernel keeps it, and as the last projection does
        attention += micro_batch.element_bytes * model.heads * model.head_dim
    return norms, heads + attention + _mlp_bytes(model, micro_batch, layer)


def _mlp_bytes(model: ModelFacts, micro_batch: MicroBatchShape, layer: Parameters) -> float:
    if any(".experts." in parameter.name for parameter in layer):
        gate = micro_batch.element_bytes * (model.hidden + 1) if model.family == "qwen2_moe" else 0
        if model.latent and micro_batch.element_bytes == 2:
            gate = 4 * model.hidden  # the router's input in fp32
        return _expert_bytes(model, micro_batch) + 4 * micro_batch.element_bytes * model.shared + gate
    if micro_batch.mlp_tile:
        return 0
    return 4 * micro_batch.element_bytes * _mlp_width(model, layer)


def _mlp_width(model: ModelFacts, layer: Parameters) -> int:
    return next(
        (parameter.shape[0] for parameter in layer if parameter.name == "mlp.gate_proj.weight"), model.intermediate
    )


def mlp_tile_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> int:
    """Bytes that one tile of the widest gated MLP saves while it is computed again; and for all tokens the gradients
    of the tiles' inputs, then put together (counted on the simulated device).
    """
    width = max((_mlp_width(model, layer) for layer in model.layers), default=model.intermediate)
    tile = 4 * micro_batch.element_bytes * width * micro_batch.mlp_tokens / micro_batch.tensor_parallel_size
    return round(tile) + 2 * micro_batch.element_bytes * model.hidden * micro_batch.tokens


def _gemma_bytes(model: ModelFacts, micro_batch: MicroBatchShape, layer: Parameters) -> _BytesPerToken:
    """Norms that keep two fp32 tensors each: two in the first Gemma, four later; Gemma-3 norms queries and keys."""
    each = micro_batch.element_bytes * model.hidden if micro_batch.mlp_tile else 8 * model.hidden + 4
    norms = (2 if model.family == "gemma" else 4) * each + 2 * micro_batch.element_bytes * model.hidden
    heads = (model.heads + model.kv_heads) * (8 * model.head_dim + 4) if model.family == "gemma3_text" else 0
    return norms, heads + _attention_bytes(model, micro_batch) + _mlp_bytes(model, micro_batch, layer)


def _attention_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> float:
    """q, k, v, the output, and what the kernel keeps: a logsumexp (sdpa, flash) or the s x s softmax (eager)."""
    width, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    # Gemma-2's soft cap has no fused kernel in transformers.
    if micro_batch.attention == "eager" or model.family == "gemma2":
        soft_cap = micro_batch.element_bytes * model.heads * micro_batch.seq_length if model.family == "gemma2" else 0
        copy = 2 * model.heads * micro_batch.seq_length if micro_batch.element_bytes == 2 else 0
        return 4 * micro_batch.element_bytes * width + 4 * model.heads * micro_batch.seq_length + copy + soft_cap
    if micro_batch.attention == "sdpa_varlen" and micro_batch.element_bytes == 4:
        # a call for each document: keys and values of every query head, and outputs by document and together
        return micro_batch.element_bytes * 5 * width + 4 * model.heads
    if model.family == "phi3":  # the value is a view that keeps the fused projection alive
        return micro_batch.element_bytes * (4 * width + 3 * keys) + 4 * model.heads
    if micro_batch.mask_length and micro_batch.attention == "sdpa":
        # The memory-efficient kernel of CUDA: keys and values of every query head, and the mask in 16 or 32 bits.
        return micro_batch.element_bytes * (4 * width + micro_batch.mask_length) + 4 * model.heads
    return micro_batch.element_bytes * (2 * width + 2 * keys) + 4 * model.heads


def _latent_attention_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> float:
    """Latent attention: low-rank inputs and their norms, then queries, keys and output of every head. Values are a view
    that keeps the plain part of the keys alive, and in fp32 the norm's input one that keeps the rotary part.

    Heads as wide as their values take torch's flash kernel, whose output follows the layout of the queries and is
    copied for the last projection; others take the memory-efficient one, on CUDA.
    """
    if model.latent is None:
        return 0
    latent, element_bytes = model.latent, micro_batch.element_bytes
    width = latent.plain + latent.rope
    copy = latent.value if width == latent.value else 0
    heads = model.heads * (2 * width + latent.plain + 2 * latent.value + copy)
    rotary = 4 * latent.rope if element_bytes == 4 else 0
    ranks = latent.queries + latent.keys
    return (4 + 2 * element_bytes) * ranks + 8 + rotary + element_bytes * heads + 4 * model.heads


def _expert_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> float:
    """Router, permutations, and the gathered tokens of the grouped experts, K of E a token."""
    num_active, weights = model.experts_per_token, 4 if model.family == "mixtral" else micro_batch.element_bytes
    renormalised = 4 + 4 * num_active if model.family == "mixtral" else 0
    router = 4 * model.experts + 8 * num_active + renormalised + 24 * num_active + weights * num_active
    return router + num_active * (
        2 * micro_batch.element_bytes * model.hidden + 4 * micro_batch.element_bytes * model.intermediate
    )


def _gpt_oss_bytes(model: ModelFacts, micro_batch: MicroBatchShape, _: Parameters) -> _BytesPerToken:
    """Norms in fp32, eager attention with one more column for the sink, and clamped experts."""
    norms, num_active = (
        2 * (8 * model.hidden + 4) + 2 * micro_batch.element_bytes * model.hidden,
        model.experts_per_token,
    )
    attention = (
        4 * micro_batch.element_bytes * model.heads * model.head_dim
        + micro_batch.element_bytes * model.heads * (micro_batch.seq_length + 1)
        + 8 * model.heads
    )
    return norms, attention + num_active * (
        2 * micro_batch.element_bytes * model.hidden
        + 7 * micro_batch.element_bytes * model.intermediate
        + 40
        + 2 * micro_batch.element_bytes
    )


def _gpt2_bytes(model: ModelFacts, micro_batch: MicroBatchShape, _: Parameters) -> _BytesPerToken:
    """Two layer norms, fused qkv, and a GELU written as four operations."""
    norms = 2 * (2 * micro_batch.element_bytes * model.hidden + 2 * micro_batch.element_bytes)
    softmax = 6 * model.heads * micro_batch.seq_length if micro_batch.attention == "eager" else 4 * model.heads
    return (
        norms,
        4 * micro_batch.element_bytes * model.hidden + softmax + 5 * micro_batch.element_bytes * model.intermediate,
    )


def _phi_bytes(model: ModelFacts, micro_batch: MicroBatchShape, _: Parameters) -> _BytesPerToken:
    """One layer norm, and a GELU written as four operations."""
    return 3 * micro_batch.element_bytes * model.hidden + 2 * micro_batch.element_bytes, _attention_bytes(
        model, micro_batch
    ) + 5 * micro_batch.element_bytes * model.intermediate


def _neox_bytes(model: ModelFacts, micro_batch: MicroBatchShape, _: Parameters) -> _BytesPerToken:
    """Parallel residual: two layer norms of one input; rotary on a part of each head."""
    softmax = 6 * model.heads * micro_batch.seq_length if micro_batch.attention == "eager" else 4 * model.heads
    attention = (
        5 * micro_batch.element_bytes * model.hidden
        + 2 * micro_batch.element_bytes * model.heads * model.head_dim
        + softmax
    )
    return (
        3 * micro_batch.element_bytes * model.hidden + 4 * micro_batch.element_bytes,
        attention + 2 * micro_batch.element_bytes * model.intermediate,
    )


def _falcon_bytes(model: ModelFacts, micro_batch: MicroBatchShape, layer: Parameters) -> _BytesPerToken:
    """One or two layer norms of one input; keys and values spread over all heads, and a mask."""
    norms = sum(len(parameter.shape) == 1 and parameter.name.endswith("weight") for parameter in layer)
    whole = (
        micro_batch.element_bytes * model.hidden
        + norms * (micro_batch.element_bytes * model.hidden + 2 * micro_batch.element_bytes)
        + micro_batch.element_bytes * micro_batch.seq_length
    )
    return (
        whole,
        4 * micro_batch.element_bytes * model.heads * model.head_dim
        + 4 * model.heads
        + 2 * micro_batch.element_bytes * model.intermediate,
    )


_FAMILIES: dict[str, Callable[[ModelFacts, MicroBatchShape, Parameters], _BytesPerToken]] = {
    "gpt2": _gpt2_bytes,
    "gpt_neox": _neox_bytes,
    "gpt_oss": _gpt_oss_bytes,
    "falcon": _falcon_bytes,
    "phi": _phi_bytes,
    "gemma": _gemma_bytes,
    "gemma2": _gemma_bytes,
    "gemma3_text": _gemma_bytes,
}


def head_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> int:
    """Bytes that the final norm, the head and the loss save: the fp32 log-softmax above all. All of them trained."""
    norm = (
        8 * model.hidden + 4 if model.family.startswith("gemma") else (4 + micro_batch.element_bytes) * model.hidden + 4
    )
    if micro_batch.mlp_tile:
        norm = micro_batch.element_bytes * model.hidden
    soft_cap = micro_batch.element_bytes * model.vocab if model.family == "gemma2" else 0
    return micro_batch.tokens * (norm + micro_batch.element_bytes * model.hidden + 4 * model.vocab + 8 + soft_cap)


def backward_logits_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> int:
    """Bytes of vocabulary-sized tensors at the start of the backward pass, when the caller keeps only the loss:
    log-softmax 4, its gradient 4, the gradient of the loss 4, a token and word.
    """
    return 12 * model.vocab * micro_batch.tokens


def forward_logits_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> int:
    """The same at the end of the forward pass: logits, their fp32 copy where they are 16-bit, and the log-softmax."""
    return (8 + (2 if micro_batch.element_bytes == 2 else 0)) * model.vocab * micro_batch.tokens


def forward_layer_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> int:
    """Bytes that a recomputed layer of the Llama kind holds at most in its forward pass, beyond the inputs that wait
    (counted on the simulated device): the sum of its input and the attention's output, and that normed, with three
    tensors as wide as the MLP; or with Ulysses the normed input, queries, keys and values before and after they change
    ranks, outputs also once more while they are put in order, and the rotary tables. 0 for other families and experts.
    """
    if model.family in _FAMILIES or model.experts or model.latent:
        return 0
    width, keys, ranks = model.heads * model.head_dim, model.kv_heads * model.head_dim, micro_batch.tensor_parallel_size
    mlp = 2 * model.hidden * micro_batch.tokens + 3 * model.intermediate * micro_batch.mlp_tokens / ranks
    attention = model.hidden + (5 * width + 4 * keys) / ranks + 2 * model.head_dim if micro_batch.splits_rows else 0
    return round(micro_batch.element_bytes * max(mlp, attention * micro_batch.tokens))


def checkpointed_input_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> int:
    """With gradient checkpointing: a layer keeps its input alone."""
    return micro_batch.element_bytes * model.hidden * micro_batch.tokens


def kept_attention_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> int:
    """Bytes that a recomputed layer keeps of its attention: the kernel's output, and its logsumexp in fp32."""
    width = model.latent.value if model.latent else model.head_dim
    each = model.heads * (micro_batch.element_bytes * width + 4)
    return round(micro_batch.tokens * each / micro_batch.tensor_parallel_size)


def recompute_gradient_bytes(model: ModelFacts, micro_batch: MicroBatchShape) -> int:
    """Gradients inside one layer while it is differentiated: two MLP-wide tensors. A gated MLP has three, and has
    freed the input of its last product by then.
    """
    width = model.intermediate * (model.experts_per_token or 1)
    return round(2 * micro_batch.element_bytes * width * micro_batch.mlp_tokens / micro_batch.tensor_parallel_size)
