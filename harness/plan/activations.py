"""Bytes that the forward pass keeps for the backward pass: layers, head, and their peaks. Per token of a micro-batch.

Formulas are those of `transformers` 5 modules in eager PyTorch, counted with saved-tensor hooks
(tests/with_deepspeed/test_plan_activations.py); other kernels and compiled models keep less. Latent attention, and
models that are known from their built parameters alone, are estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.facts.model_parts import Parameters
from harness.facts.models import ModelFacts

_Bytes = tuple[float, float]
"""Bytes a token of a layer: what every tensor-parallel rank keeps, and what they divide."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A micro-batch on one rank: `tokens` of it, in sequences of `sequence`; `e` bytes an activation element.

    `tensor`: ranks that divide attention and MLP; norms and the inputs of linears are whole on each.
    """

    tokens: int
    sequence: int
    e: int
    attention: str = "sdpa"
    tensor: int = 1


def layer_bytes(m: ModelFacts, x: Shape, layer: Parameters | None = None) -> int:
    """Bytes that one decoder layer saves for backward, without checkpointing; the largest kind unless one is given."""
    layer = m.layer if layer is None else layer
    whole, divided = _FAMILIES.get(m.family, _llama)(m, x, layer)
    return round(x.tokens * (whole + divided / x.tensor))


def all_layers(m: ModelFacts, x: Shape, count: int) -> int:
    """Bytes that `count` layers save: the heaviest ones where they differ."""
    return sum(sorted((layer_bytes(m, x, layer) for layer in m.layers), reverse=True)[:count])


def _llama(m: ModelFacts, x: Shape, layer: Parameters) -> _Bytes:
    """Llama, Mistral, Qwen, Phi-3 and their mixtures of experts: two RMS norms, attention, gated MLP."""
    norms = 2 * ((4 + x.e) * m.hidden + 4) + 2 * x.e * m.hidden
    heads = (m.heads + m.kv_heads) * ((4 + x.e) * m.head_dim + 4) if m.family in ("qwen3", "qwen3_moe") else 0
    attention = _latent(m, x) if m.latent else _attention(m, x)
    return norms, heads + attention + _mlp(m, x, layer)


def _mlp(m: ModelFacts, x: Shape, layer: Parameters) -> float:
    if any(".experts." in p.name for p in layer):
        gate = x.e * (m.hidden + 1) if m.family == "qwen2_moe" else 0
        return _experts(m, x) + 4 * x.e * m.shared + gate
    wide = next((p.shape[0] for p in layer if p.name == "mlp.gate_proj.weight"), m.intermediate)
    return 4 * x.e * wide


def _gemma(m: ModelFacts, x: Shape, layer: Parameters) -> _Bytes:
    """Norms that keep two fp32 tensors each: two in the first Gemma, four later; Gemma-3 norms queries and keys."""
    norms = (2 if m.family == "gemma" else 4) * (8 * m.hidden + 4) + 2 * x.e * m.hidden
    heads = (m.heads + m.kv_heads) * (8 * m.head_dim + 4) if m.family.startswith("gemma3") else 0
    return norms, heads + _attention(m, x) + _mlp(m, x, layer)


def _attention(m: ModelFacts, x: Shape) -> float:
    """q, k, v, the output, and what the kernel keeps: a logsumexp (sdpa, flash) or the s x s softmax (eager)."""
    width, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
    if x.attention == "eager" or m.family == "gemma2":  # Gemma-2's soft cap has no fused kernel in transformers
        soft_cap = x.e * m.heads * x.sequence if m.family == "gemma2" else 0
        copy = 2 * m.heads * x.sequence if x.e == 2 else 0
        return 4 * x.e * width + 4 * m.heads * x.sequence + copy + soft_cap
    if m.family == "phi3":  # the value is a view that keeps the fused projection alive
        return x.e * (4 * width + 3 * keys) + 4 * m.heads
    return x.e * (2 * width + 2 * keys) + 4 * m.heads


def _latent(m: ModelFacts, x: Shape) -> float:
    """Latent attention: low-rank inputs and their norms, then queries, keys, values and output of every head."""
    if m.latent is None:
        return 0
    ranks = m.latent.queries + m.latent.keys
    heads = m.heads * (2 * (m.latent.plain + m.latent.rope) + 2 * m.latent.value)
    return (4 + 2 * x.e) * ranks + 8 + x.e * heads + 4 * m.heads


def _experts(m: ModelFacts, x: Shape) -> float:
    """Router, permutations, and the gathered tokens of the grouped experts, K of E a token."""
    k, weights = m.experts_per_token, 4 if m.family == "mixtral" else x.e
    renormalised = 4 + 4 * k if m.family == "mixtral" else 0
    router = 4 * m.experts + 8 * k + renormalised + 24 * k + weights * k
    return router + k * (2 * x.e * m.hidden + 4 * x.e * m.intermediate)


def _gpt_oss(m: ModelFacts, x: Shape, _: Parameters) -> _Bytes:
    """Norms in fp32, eager attention with one more column for the sink, and clamped experts."""
    norms, k = 2 * (8 * m.hidden + 4) + 2 * x.e * m.hidden, m.experts_per_token
    attention = 4 * x.e * m.heads * m.head_dim + x.e * m.heads * (x.sequence + 1) + 8 * m.heads
    return norms, attention + k * (2 * x.e * m.hidden + 7 * x.e * m.intermediate + 40 + 2 * x.e)


def _gpt2(m: ModelFacts, x: Shape, _: Parameters) -> _Bytes:
    """Two layer norms, fused qkv, and a GELU written as four operations."""
    norms = 2 * (2 * x.e * m.hidden + 2 * x.e)
    softmax = 6 * m.heads * x.sequence if x.attention == "eager" else 4 * m.heads
    return norms, 4 * x.e * m.hidden + softmax + 5 * x.e * m.intermediate


def _phi(m: ModelFacts, x: Shape, _: Parameters) -> _Bytes:
    """One layer norm, and a GELU written as four operations."""
    return 3 * x.e * m.hidden + 2 * x.e, _attention(m, x) + 5 * x.e * m.intermediate


def _neox(m: ModelFacts, x: Shape, _: Parameters) -> _Bytes:
    """Parallel residual: two layer norms of one input; rotary on a part of each head."""
    softmax = 6 * m.heads * x.sequence if x.attention == "eager" else 4 * m.heads
    attention = 5 * x.e * m.hidden + 2 * x.e * m.heads * m.head_dim + softmax
    return 3 * x.e * m.hidden + 4 * x.e, attention + 2 * x.e * m.intermediate


def _falcon(m: ModelFacts, x: Shape, layer: Parameters) -> _Bytes:
    """One or two layer norms of one input; keys and values spread over all heads, and a mask."""
    norms = sum(len(p.shape) == 1 and p.name.endswith("weight") for p in layer)
    whole = x.e * m.hidden + norms * (x.e * m.hidden + 2 * x.e) + x.e * x.sequence
    return whole, 4 * x.e * m.heads * m.head_dim + 4 * m.heads + 2 * x.e * m.intermediate


_FAMILIES: dict[str, Callable[[ModelFacts, Shape, Parameters], _Bytes]] = {
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


def head_bytes(m: ModelFacts, x: Shape) -> int:
    """What final norm, head and loss save: the fp32 log-softmax above all."""
    norm = 8 * m.hidden + 4 if m.family.startswith("gemma") else (4 + x.e) * m.hidden + 4
    soft_cap = x.e * m.vocab if m.family == "gemma2" else 0
    return x.tokens * (norm + x.e * m.hidden + 4 * m.vocab + 8 + soft_cap)


def logits_peak(m: ModelFacts, x: Shape) -> int:
    """Bytes of vocabulary-sized tensors at the start of the backward pass, when the caller keeps only the loss:
    log-softmax 4, its gradient 4, the gradient of the loss 4, a token and word.
    """
    return 12 * m.vocab * x.tokens


def logits_forward(m: ModelFacts, x: Shape) -> int:
    """The same at the end of the forward pass: logits, their fp32 copy where they are 16-bit, and the log-softmax."""
    return (8 + (2 if x.e == 2 else 0)) * m.vocab * x.tokens


def kept_input(m: ModelFacts, x: Shape) -> int:
    """With gradient checkpointing: a layer keeps its input alone."""
    return x.e * m.hidden * x.tokens


def recompute_extra(m: ModelFacts, x: Shape) -> int:
    """Gradients inside one recomputed layer while it is differentiated: two MLP-wide tensors."""
    active = m.experts_per_token or 1
    return round(2 * x.e * m.intermediate * active * x.tokens / x.tensor)
