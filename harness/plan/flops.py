"""Floating-point operations of a token: what a model needs, and what the hardware executes. Counts; no time."""

from __future__ import annotations

from harness.facts.models import ModelFacts


def flops_per_token(m: ModelFacts, sequence: int, checkpointing: bool) -> float:
    """Floating-point operations that the hardware executes for a token, forward and backward.

    6 a matmul parameter and 6 L a d s of causal attention (half of PaLM's 12). Checkpointing recomputes the layers,
    without the last projection of the MLP (torch stops early): 2 (N_layers - L h f), and the attention's forward.
    """
    attention = 6 * m.num_layers * m.heads * m.head_dim * sequence
    total = 6 * m.matmul_parameters + attention
    if not checkpointing:
        return total
    active = m.experts_per_token or 1
    down = m.num_layers * m.hidden * m.intermediate * active
    layers = m.matmul_parameters - m.vocab * m.hidden
    return total + 2 * (layers - down) + attention / 3


def model_flops_per_token(m: ModelFacts, sequence: int) -> float:
    """What MFU counts: 6 N + 12 L a d s, attention in full and nothing recomputed (PaLM, arXiv 2204.02311, appendix B).

    N is the active parameters that are multiplied with: no norms, no input embedding.
    """
    return 6 * m.matmul_parameters + 12 * m.num_layers * m.heads * m.head_dim * sequence
