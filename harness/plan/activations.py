"""Bytes that the forward pass keeps for the backward pass: layers, head, and their peaks. Per token of a micro-batch.

Formulas are those of `transformers` 5 modules in eager PyTorch, counted with saved-tensor hooks
(tests/with_deepspeed/test_plan_activations.py); other kernels and compiled models keep less.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.models import ModelFacts


@dataclass(frozen=True, slots=True)
class Shape:
    """A micro-batch on one rank: `tokens` of it, in sequences of `sequence`; `e` bytes an activation element."""

    tokens: int
    sequence: int
    e: int
    attention: str = "sdpa"


def layer_bytes(m: ModelFacts, x: Shape) -> int:
    """Bytes that one decoder layer saves for backward, without checkpointing."""
    if m.family == "gpt2":
        per_token = _gpt2(m, x)
    elif m.family == "gpt_neox":
        per_token = _neox(m, x)
    elif m.family in ("gemma2", "gemma3_text"):
        per_token = _gemma(m, x)
    else:
        per_token = _llama(m, x)
    return x.tokens * per_token


def _llama(m: ModelFacts, x: Shape) -> int:
    """Llama, Mistral, Qwen, Phi-3 and their mixtures of experts: two RMS norms, attention, gated MLP."""
    norms = 2 * ((4 + x.e) * m.hidden + 4) + 2 * x.e * m.hidden
    if m.family in ("qwen3", "qwen3_moe"):
        norms += (m.heads + m.kv_heads) * ((4 + x.e) * m.head_dim + 4)
    return norms + _attention(m, x) + (_experts(m, x) if m.experts else 4 * x.e * m.intermediate)


def _gemma(m: ModelFacts, x: Shape) -> int:
    """Four norms that keep three fp32 tensors' worth; Gemma-3 also norms queries and keys."""
    norms = 4 * (8 * m.hidden + 4) + 2 * x.e * m.hidden
    if m.family == "gemma3_text":
        norms += (m.heads + m.kv_heads) * (8 * m.head_dim + 4)
    return norms + _attention(m, x) + 4 * x.e * m.intermediate


def _attention(m: ModelFacts, x: Shape) -> int:
    """q, k, v, the output, and what the kernel keeps: a logsumexp (sdpa, flash) or the s x s softmax (eager)."""
    width, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
    if x.attention == "eager" or m.family == "gemma2":  # Gemma-2's soft cap has no fused kernel in transformers
        soft_cap = x.e * m.heads * x.sequence if m.family == "gemma2" else 0
        copy = 2 * m.heads * x.sequence if x.e == 2 else 0
        return 4 * x.e * width + 4 * m.heads * x.sequence + copy + soft_cap
    if m.family == "phi3":  # the value is a view that keeps the fused projection alive
        return x.e * (4 * width + 3 * keys) + 4 * m.heads
    return x.e * (2 * width + 2 * keys) + 4 * m.heads


def _experts(m: ModelFacts, x: Shape) -> int:
    """Router, permutations, and the gathered tokens of the grouped experts, K of E a token."""
    k, weights = m.experts_per_token, 4 if m.family == "mixtral" else x.e
    renormalised = 4 + 4 * k if m.family == "mixtral" else 0
    router = 4 * m.experts + 8 * k + renormalised + 24 * k + weights * k
    return router + k * (2 * x.e * m.hidden + 4 * x.e * m.intermediate)


def _gpt2(m: ModelFacts, x: Shape) -> int:
    """Two layer norms, fused qkv, and a GELU written as four operations."""
    norms = 2 * (2 * x.e * m.hidden + 2 * x.e)
    softmax = 6 * m.heads * x.sequence if x.attention == "eager" else 4 * m.heads
    return norms + 4 * x.e * m.hidden + softmax + 5 * x.e * m.intermediate


def _neox(m: ModelFacts, x: Shape) -> int:
    """Parallel residual: two layer norms of one input; rotary on a part of each head."""
    softmax = 6 * m.heads * x.sequence if x.attention == "eager" else 4 * m.heads
    return 8 * x.e * m.hidden + 4 * x.e + 2 * x.e * m.heads * m.head_dim + softmax + 2 * x.e * m.intermediate


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


def kept_input(m: ModelFacts, x: Shape) -> int:
    """With gradient checkpointing: a layer keeps its input alone."""
    return x.e * m.hidden * x.tokens


def recompute_extra(m: ModelFacts, x: Shape) -> int:
    """Gradients inside one recomputed layer while it is differentiated: two MLP-wide tensors."""
    active = m.experts_per_token or 1
    return 2 * x.e * m.intermediate * active * x.tokens
