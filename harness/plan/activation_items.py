"""Rows of activations, logits and recomputation for one rank. The bytes are counted in `harness.plan.activations`."""

from __future__ import annotations

from harness.facts.model_lookup import ModelFacts
from harness.plan.activations import (
    MicroBatchShape,
    all_layer_bytes,
    backward_logits_bytes,
    checkpointed_input_bytes,
    forward_logits_bytes,
    head_bytes,
    layer_bytes,
    recompute_gradient_bytes,
)
from harness.plan.memory_items import BACKWARD, MICRO_BATCH, TRAINING, MemoryItem, Phase, Tier
from harness.plan.plan_settings import PlanSettings
from harness.plan.zero_partitions import local_vocab_size

_SOURCE = "transformers modules, saved tensors"
_LOSS_SOURCE = "transformers loss/loss_utils.py, logits in fp32"


def activation_items(m: ModelFacts, s: PlanSettings) -> list[MemoryItem]:
    """What the layers keep, and the head or one recomputed layer. Of a pipeline, the stage that needs more."""
    x = MicroBatchShape(
        s.tokens_per_micro_batch, s.seq_length, 2 if s.mixed_precision else 4, s.attention, s.tensor_parallel_size
    )
    if s.pipeline_parallel_size == 1:
        return [*_layer_items(m, s, x, 1), *_mask_items(s), *_peak_items(m, s, x, head=True)]
    first = [*_layer_items(m, s, x, min(s.pipeline_parallel_size, s.accumulation)), *_peak_items(m, s, x, head=False)]
    last = [*_layer_items(m, s, x, 1), *_peak_items(m, s, x, head=True)]
    return max(first, last, key=lambda rows: sum(row.bytes for row in rows if "backward" in row.phases))


def _layer_items(m: ModelFacts, s: PlanSettings, x: MicroBatchShape, in_flight: int) -> list[MemoryItem]:
    """From forward to backward. `in_flight`: micro-batches that a stage of 1F1B has begun and not ended."""
    layers = -(-m.num_layers // s.pipeline_parallel_size)
    flight = f", {in_flight} micro-batches in flight" if in_flight > 1 else ""
    if not s.checkpointing:
        size, formula = in_flight * all_layer_bytes(m, x, layers), _layer_formula(m, x) + flight
        return [
            MemoryItem("gpu", "activations", f"activations of {layers} layers", size, formula, _SOURCE, MICRO_BATCH)
        ]
    share = s.tensor_parallel_size if s.partition_activations else 1
    size = in_flight * layers * checkpointed_input_bytes(m, x) // share
    formula = (
        f"{layers} layers x {x.element_bytes} x hidden x {x.tokens} tokens"
        + (f" / {share}" if share > 1 else "")
        + flight
    )
    tier: Tier = "host" if s.activation_device == "cpu" else "gpu"
    source = _SOURCE if tier == "gpu" else "runtime/activation_checkpointing/checkpointing.py cpu_checkpointing"
    what = f"inputs of {layers} layers (gradient checkpointing)"
    return [MemoryItem(tier, "activations", what, size, formula, source, MICRO_BATCH)]


def _mask_items(s: PlanSettings) -> list[MemoryItem]:
    """With Ulysses a rank attends over whole rows: the mask of packed ones is kept until the next forward pass."""
    if s.sequence_parallel_size == 1 or not s.packing or s.attention != "sdpa":
        return []
    length = s.sequence_parallel_size * -(-s.seq_length // s.sequence_parallel_size)
    formula = f"1 x {length:,} x {length:,} positions x {s.micro_batch} row{'s' if s.micro_batch > 1 else ''}"
    source = "runtime/parallel/sequence_parallel.py of the harness"
    what = "attention mask of packed rows"
    return [MemoryItem("gpu", "activations", what, s.micro_batch * length**2, formula, source, TRAINING)]


def _peak_items(m: ModelFacts, s: PlanSettings, x: MicroBatchShape, *, head: bool) -> list[MemoryItem]:
    """Forward ends in the logits; backward begins with them, and later recomputes one layer: the larger counts."""
    rows = _head_items(m, s, x) if head else []
    if not s.checkpointing:
        return rows
    again = layer_bytes(m, x) + recompute_gradient_bytes(m, x)
    if head and rows[0].bytes >= again:
        return rows
    formula = f"{_layer_formula(m, x)} + 2 x {x.element_bytes} x intermediate"
    recompute = MemoryItem("gpu", "recompute", "one layer while it is recomputed", again, formula, _SOURCE, BACKWARD)
    return [recompute, *rows[1:]]


def _head_items(m: ModelFacts, s: PlanSettings, x: MicroBatchShape) -> list[MemoryItem]:
    """Head and loss in the backward pass, and at the end of the forward pass."""
    chunk = s.loss_chunk_size
    if not chunk or s.pipeline_parallel_size > 1:
        return [_full_logits_item(m, x, BACKWARD), _full_logits_item(m, x, ("forward",))]
    chunk, words = min(chunk, x.tokens), local_vocab_size(m, s)
    kept = head_bytes(m, x) - 4 * m.vocab * x.tokens
    # The gradient of the head's weight is summed in fp32; in fp32 it becomes the weight's own gradient.
    weight, width = 4 * words * m.hidden, 4 if x.element_bytes == 4 else 6
    forward = kept + width * words * chunk + weight
    backward = kept + (0 if x.element_bytes == 4 else weight)
    formula = f"{width} x {words:,} words x {chunk} tokens, the gradient of the head in fp32, and the final norm"
    after = "the gradient of the head in fp32, and the final norm" if x.element_bytes == 2 else "the final norm"
    source = "runtime/chunked_loss.py of the harness"
    return [
        MemoryItem("gpu", "logits", "head and loss", backward, after, source, BACKWARD),
        MemoryItem(
            "gpu",
            "logits",
            "logits of a chunk and loss at the end of the forward pass",
            forward,
            formula,
            source,
            ("forward",),
        ),
    ]


def _full_logits_item(m: ModelFacts, x: MicroBatchShape, phases: tuple[Phase, ...]) -> MemoryItem:
    norm = head_bytes(m, x) - 4 * m.vocab * x.tokens
    backward = phases == BACKWARD
    size = norm + (backward_logits_bytes(m, x) if backward else forward_logits_bytes(m, x))
    width = 12 if backward else 8 + (2 if x.element_bytes == 2 else 0)
    what = "logits and loss" if backward else "logits and loss at the end of the forward pass"
    formula = f"{width} x {m.vocab:,} words x {x.tokens} tokens, and the final norm"
    return MemoryItem("gpu", "logits", what, size, formula, _LOSS_SOURCE, phases)


def _layer_formula(m: ModelFacts, x: MicroBatchShape) -> str:
    shared = f" (tensor degree {x.tensor_parallel_size})" if x.tensor_parallel_size > 1 else ""
    return f"{layer_bytes(m, x) // x.tokens:,} bytes a token and layer, {x.tokens} tokens{shared}"
