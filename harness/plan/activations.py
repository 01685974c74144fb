"""Bytes that the forward pass keeps for the backward pass: layers, head, and their peaks. Per token of a micro-batch.

Formulas are those of `transformers` 5 modules in eager PyTorch, counted with saved-tensor hooks
(tests/with_deepspeed/test_plan_activations.py); other kernels and compiled models keep less. Latent attention, and
models that are known from their built parameters alone, are estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.facts.model_lookup import ModelFacts
from harness.facts.model_parts import Parameters

_BytesPerToken = tuple[float, float]
"""Bytes a token of a layer: what every tensor-parallel rank keeps, and what they divide."""


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """A micro-batch on one rank: `tokens` of it, in sequences of `sequence`; `e` bytes an activation element.

    `tensor`: ranks that divide attention and MLP; norms and the inputs of linears are whole on each.
    """

    tokens: int
    seq_length: int
    element_bytes: int
    attention: str = "sdpa"
    tensor_parallel_size: int = 1


def layer_bytes(m: ModelFacts, x: MicroBatchShape, layer: Parameters | None = None) -> int:
    """Bytes that one decoder layer saves for backward, without checkpointing; the largest kind unless one is given."""
    layer = m.largest_layer if layer is None else layer
    whole, divided = _FAMILIES.get(m.family, _llama)(m, x, layer)
    return round(x.tokens * (whole + divided / x.tensor_parallel_size))


def all_layer_bytes(m: ModelFacts, x: MicroBatchShape, count: int) -> int:
    """Bytes that `count` layers save: the heaviest ones where they differ."""
    return sum(sorted((layer_bytes(m, x, layer) for layer in m.layers), reverse=True)[:count])


def _llama(m: ModelFacts, x: MicroBatchShape, layer: Parameters) -> _BytesPerToken:
    """Llama, Mistral, Qwen, Phi-3 and their mixtures of experts: two RMS norms, attention, gated MLP."""
    norms = 2 * ((4 + x.element_bytes) * m.hidden + 4) + 2 * x.element_bytes * m.hidden
    heads = (
        (m.heads + m.kv_heads) * ((4 + x.element_bytes) * m.head_dim + 4) if m.family in ("qwen3", "qwen3_moe") else 0
    )
    attention = _latent_attention(m, x) if m.latent else _attention(m, x)
    return norms, heads + attention + _mlp(m, x, layer)


def _mlp(m: ModelFacts, x: MicroBatchShape, layer: Parameters) -> float:
    if any(".experts." in p.name for p in layer):
        gate = x.element_bytes * (m.hidden + 1) if m.family == "qwen2_moe" else 0
        return _experts(m, x) + 4 * x.element_bytes * m.shared + gate
    wide = next((p.shape[0] for p in layer if p.name == "mlp.gate_proj.weight"), m.intermediate)
    return 4 * x.element_bytes * wide


def _gemma(m: ModelFacts, x: MicroBatchShape, layer: Parameters) -> _BytesPerToken:
    """Norms that keep two fp32 tensors each: two in the first Gemma, four later; Gemma-3 norms queries and keys."""
    norms = (2 if m.family == "gemma" else 4) * (8 * m.hidden + 4) + 2 * x.element_bytes * m.hidden
    heads = (m.heads + m.kv_heads) * (8 * m.head_dim + 4) if m.family.startswith("gemma3") else 0
    return norms, heads + _attention(m, x) + _mlp(m, x, layer)


def _attention(m: ModelFacts, x: MicroBatchShape) -> float:
    """q, k, v, the output, and what the kernel keeps: a logsumexp (sdpa, flash) or the s x s softmax (eager)."""
    width, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
    if x.attention == "eager" or m.family == "gemma2":  # Gemma-2's soft cap has no fused kernel in transformers
        soft_cap = x.element_bytes * m.heads * x.seq_length if m.family == "gemma2" else 0
        copy = 2 * m.heads * x.seq_length if x.element_bytes == 2 else 0
        return 4 * x.element_bytes * width + 4 * m.heads * x.seq_length + copy + soft_cap
    if m.family == "phi3":  # the value is a view that keeps the fused projection alive
        return x.element_bytes * (4 * width + 3 * keys) + 4 * m.heads
    return x.element_bytes * (2 * width + 2 * keys) + 4 * m.heads


def _latent_attention(m: ModelFacts, x: MicroBatchShape) -> float:
    """Latent attention: low-rank inputs and their norms, then queries, keys, values and output of every head."""
    if m.latent is None:
        return 0
    ranks = m.latent.queries + m.latent.keys
    heads = m.heads * (2 * (m.latent.plain + m.latent.rope) + 2 * m.latent.value)
    return (4 + 2 * x.element_bytes) * ranks + 8 + x.element_bytes * heads + 4 * m.heads


def _experts(m: ModelFacts, x: MicroBatchShape) -> float:
    """Router, permutations, and the gathered tokens of the grouped experts, K of E a token."""
    k, weights = m.experts_per_token, 4 if m.family == "mixtral" else x.element_bytes
    renormalised = 4 + 4 * k if m.family == "mixtral" else 0
    router = 4 * m.experts + 8 * k + renormalised + 24 * k + weights * k
    return router + k * (2 * x.element_bytes * m.hidden + 4 * x.element_bytes * m.intermediate)


def _gpt_oss(m: ModelFacts, x: MicroBatchShape, _: Parameters) -> _BytesPerToken:
    """Norms in fp32, eager attention with one more column for the sink, and clamped experts."""
    norms, k = 2 * (8 * m.hidden + 4) + 2 * x.element_bytes * m.hidden, m.experts_per_token
    attention = (
        4 * x.element_bytes * m.heads * m.head_dim + x.element_bytes * m.heads * (x.seq_length + 1) + 8 * m.heads
    )
    return norms, attention + k * (
        2 * x.element_bytes * m.hidden + 7 * x.element_bytes * m.intermediate + 40 + 2 * x.element_bytes
    )


def _gpt2(m: ModelFacts, x: MicroBatchShape, _: Parameters) -> _BytesPerToken:
    """Two layer norms, fused qkv, and a GELU written as four operations."""
    norms = 2 * (2 * x.element_bytes * m.hidden + 2 * x.element_bytes)
    softmax = 6 * m.heads * x.seq_length if x.attention == "eager" else 4 * m.heads
    return norms, 4 * x.element_bytes * m.hidden + softmax + 5 * x.element_bytes * m.intermediate


def _phi(m: ModelFacts, x: MicroBatchShape, _: Parameters) -> _BytesPerToken:
    """One layer norm, and a GELU written as four operations."""
    return 3 * x.element_bytes * m.hidden + 2 * x.element_bytes, _attention(m, x) + 5 * x.element_bytes * m.intermediate


def _neox(m: ModelFacts, x: MicroBatchShape, _: Parameters) -> _BytesPerToken:
    """Parallel residual: two layer norms of one input; rotary on a part of each head."""
    softmax = 6 * m.heads * x.seq_length if x.attention == "eager" else 4 * m.heads
    attention = 5 * x.element_bytes * m.hidden + 2 * x.element_bytes * m.heads * m.head_dim + softmax
    return 3 * x.element_bytes * m.hidden + 4 * x.element_bytes, attention + 2 * x.element_bytes * m.intermediate


def _falcon(m: ModelFacts, x: MicroBatchShape, layer: Parameters) -> _BytesPerToken:
    """One or two layer norms of one input; keys and values spread over all heads, and a mask."""
    norms = sum(len(p.shape) == 1 and p.name.endswith("weight") for p in layer)
    whole = (
        x.element_bytes * m.hidden
        + norms * (x.element_bytes * m.hidden + 2 * x.element_bytes)
        + x.element_bytes * x.seq_length
    )
    return whole, 4 * x.element_bytes * m.heads * m.head_dim + 4 * m.heads + 2 * x.element_bytes * m.intermediate


_FAMILIES: dict[str, Callable[[ModelFacts, MicroBatchShape, Parameters], _BytesPerToken]] = {
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "gpt_oss": _gpt_oss,
    "falcon": _falcon,
    "phi": _phi,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3": _gemma,
    "gemma3_text": _gemma,
}


def head_bytes(m: ModelFacts, x: MicroBatchShape) -> int:
    """What final norm, head and loss save: the fp32 log-softmax above all."""
    norm = 8 * m.hidden + 4 if m.family.startswith("gemma") else (4 + x.element_bytes) * m.hidden + 4
    soft_cap = x.element_bytes * m.vocab if m.family == "gemma2" else 0
    return x.tokens * (norm + x.element_bytes * m.hidden + 4 * m.vocab + 8 + soft_cap)


def backward_logits_bytes(m: ModelFacts, x: MicroBatchShape) -> int:
    """Bytes of vocabulary-sized tensors at the start of the backward pass, when the caller keeps only the loss:
    log-softmax 4, its gradient 4, the gradient of the loss 4, a token and word.
    """
    return 12 * m.vocab * x.tokens


def forward_logits_bytes(m: ModelFacts, x: MicroBatchShape) -> int:
    """The same at the end of the forward pass: logits, their fp32 copy where they are 16-bit, and the log-softmax."""
    return (8 + (2 if x.element_bytes == 2 else 0)) * m.vocab * x.tokens


def checkpointed_input_bytes(m: ModelFacts, x: MicroBatchShape) -> int:
    """With gradient checkpointing: a layer keeps its input alone."""
    return x.element_bytes * m.hidden * x.tokens


def recompute_gradient_bytes(m: ModelFacts, x: MicroBatchShape) -> int:
    """Gradients inside one recomputed layer while it is differentiated: two MLP-wide tensors."""
    active = m.experts_per_token or 1
    return round(2 * x.element_bytes * m.intermediate * active * x.tokens / x.tensor_parallel_size)
