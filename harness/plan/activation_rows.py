"""Rows of activations, logits and recomputation for one rank. The bytes are counted in `harness.plan.activations`."""

from __future__ import annotations

from harness.facts.models import ModelFacts
from harness.plan.activations import (
    Shape,
    all_layers,
    head_bytes,
    kept_input,
    layer_bytes,
    logits_forward,
    logits_peak,
    recompute_extra,
)
from harness.plan.rows import BACKWARD, MICRO, TRAINING, Phase, Row, Tier
from harness.plan.settings import Settings
from harness.plan.shards import head_words

_SOURCE = "transformers modules, saved tensors"
_LOSS = "transformers loss/loss_utils.py, logits in fp32"


def activation_rows(m: ModelFacts, s: Settings) -> list[Row]:
    """What the layers keep, and the head or one recomputed layer. Of a pipeline, the stage that needs more."""
    x = Shape(s.tokens_per_micro_batch, s.sequence, 2 if s.mixed else 4, s.attention, s.tensor)
    if s.pipeline == 1:
        return [*_kept(m, s, x, 1), *_mask(s), *_peaks(m, s, x, head=True)]
    first = [*_kept(m, s, x, min(s.pipeline, s.accumulation)), *_peaks(m, s, x, head=False)]
    last = [*_kept(m, s, x, 1), *_peaks(m, s, x, head=True)]
    return max(first, last, key=lambda rows: sum(row.bytes for row in rows if "backward" in row.phases))


def _kept(m: ModelFacts, s: Settings, x: Shape, in_flight: int) -> list[Row]:
    """From forward to backward. `in_flight`: micro-batches that a stage of 1F1B has begun and not ended."""
    layers = -(-m.num_layers // s.pipeline)
    flight = f", {in_flight} micro-batches in flight" if in_flight > 1 else ""
    if not s.checkpointing:
        size, formula = in_flight * all_layers(m, x, layers), _layer_formula(m, x) + flight
        return [Row("gpu", "activations", f"activations of {layers} layers", size, formula, _SOURCE, MICRO)]
    share = s.tensor if s.partition_activations else 1
    size = in_flight * layers * kept_input(m, x) // share
    formula = f"{layers} layers x {x.e} x hidden x {x.tokens} tokens" + (f" / {share}" if share > 1 else "") + flight
    tier: Tier = "host" if s.activations_at == "cpu" else "gpu"
    source = _SOURCE if tier == "gpu" else "runtime/activation_checkpointing/checkpointing.py cpu_checkpointing"
    what = f"inputs of {layers} layers (gradient checkpointing)"
    return [Row(tier, "activations", what, size, formula, source, MICRO)]


def _mask(s: Settings) -> list[Row]:
    """With Ulysses a rank attends over whole rows: the mask of packed ones is kept until the next forward pass."""
    if s.sequence_parallel == 1 or not s.packed or s.attention != "sdpa":
        return []
    length = s.sequence_parallel * -(-s.sequence // s.sequence_parallel)
    formula = f"1 x {length:,} x {length:,} positions x {s.micro_batch} row{'s' if s.micro_batch > 1 else ''}"
    source = "runtime/sequence_parallel.py of the harness"
    what = "attention mask of packed rows"
    return [Row("gpu", "activations", what, s.micro_batch * length**2, formula, source, TRAINING)]


def _peaks(m: ModelFacts, s: Settings, x: Shape, *, head: bool) -> list[Row]:
    """Forward ends in the logits; backward begins with them, and later recomputes one layer: the larger counts."""
    rows = _heads(m, s, x) if head else []
    if not s.checkpointing:
        return rows
    again = layer_bytes(m, x) + recompute_extra(m, x)
    if head and rows[0].bytes >= again:
        return rows
    formula = f"{_layer_formula(m, x)} + 2 x {x.e} x intermediate"
    recompute = Row("gpu", "recompute", "one layer while it is recomputed", again, formula, _SOURCE, BACKWARD)
    return [recompute, *rows[1:]]


def _heads(m: ModelFacts, s: Settings, x: Shape) -> list[Row]:
    """Head and loss in the backward pass, and at the end of the forward pass."""
    chunk = s.loss_chunk
    if not chunk or s.pipeline > 1:
        return [_head(m, x, BACKWARD), _head(m, x, ("forward",))]
    chunk, words = min(chunk, x.tokens), head_words(m, s)
    kept = head_bytes(m, x) - 4 * m.vocab * x.tokens
    # The gradient of the head's weight is summed in fp32; in fp32 it becomes the weight's own gradient.
    weight, width = 4 * words * m.hidden, 4 if x.e == 4 else 6
    forward = kept + width * words * chunk + weight
    backward = kept + (0 if x.e == 4 else weight)
    formula = f"{width} x {words:,} words x {chunk} tokens, the gradient of the head in fp32, and the final norm"
    after = "the gradient of the head in fp32, and the final norm" if x.e == 2 else "the final norm"
    source = "runtime/chunked_loss.py of the harness"
    return [
        Row("gpu", "logits", "head and loss", backward, after, source, BACKWARD),
        Row(
            "gpu",
            "logits",
            "logits of a chunk and loss at the end of the forward pass",
            forward,
            formula,
            source,
            ("forward",),
        ),
    ]


def _head(m: ModelFacts, x: Shape, phases: tuple[Phase, ...]) -> Row:
    norm = head_bytes(m, x) - 4 * m.vocab * x.tokens
    backward = phases == BACKWARD
    size = norm + (logits_peak(m, x) if backward else logits_forward(m, x))
    width = 12 if backward else 8 + (2 if x.e == 2 else 0)
    what = "logits and loss" if backward else "logits and loss at the end of the forward pass"
    formula = f"{width} x {m.vocab:,} words x {x.tokens} tokens, and the final norm"
    return Row("gpu", "logits", what, size, formula, _LOSS, phases)


def _layer_formula(m: ModelFacts, x: Shape) -> str:
    shared = f" (tensor degree {x.tensor})" if x.tensor > 1 else ""
    return f"{layer_bytes(m, x) // x.tokens:,} bytes a token and layer, {x.tokens} tokens{shared}"
