# SPDX-License-Identifier: Apache-2.0
"""Memory items of activations, logits and recomputation for one rank; their bytes are in `activation_bytes`."""

from __future__ import annotations

from harness.facts.model_lookup import ModelFacts
from harness.plan.activation_bytes import (
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


def activation_items(model: ModelFacts, settings: PlanSettings) -> list[MemoryItem]:
    """The saved activations, and the head or one recomputed layer. Of a pipeline, the stage that needs more."""
    micro_batch = MicroBatchShape(
        settings.tokens_per_micro_batch,
        settings.seq_length,
        2 if settings.mixed_precision else 4,
        settings.attention,
        settings.tensor_parallel_size,
    )
    if settings.pipeline_parallel_size == 1:
        return [
            *_layer_items(model, settings, micro_batch, 1),
            *_mask_items(settings),
            *_peak_items(model, settings, micro_batch, head=True),
        ]
    first = [
        *_layer_items(model, settings, micro_batch, min(settings.pipeline_parallel_size, settings.accumulation)),
        *_peak_items(model, settings, micro_batch, head=False),
    ]
    last = [*_layer_items(model, settings, micro_batch, 1), *_peak_items(model, settings, micro_batch, head=True)]
    return max(first, last, key=lambda items: sum(item.bytes for item in items if "backward" in item.phases))


def _layer_items(
    model: ModelFacts, settings: PlanSettings, micro_batch: MicroBatchShape, in_flight: int
) -> list[MemoryItem]:
    """Live from forward to backward. `in_flight`: micro-batches of which a 1F1B stage still needs the backward pass."""
    layers = -(-model.num_layers // settings.pipeline_parallel_size)
    in_flight_note = f", {in_flight} micro-batches in flight" if in_flight > 1 else ""
    if not settings.checkpointing:
        size, formula = (
            in_flight * all_layer_bytes(model, micro_batch, layers),
            _layer_formula(model, micro_batch) + in_flight_note,
        )
        return [
            MemoryItem("gpu", "activations", f"activations of {layers} layers", size, formula, _SOURCE, MICRO_BATCH)
        ]
    share = settings.tensor_parallel_size if settings.partition_activations else 1
    size = in_flight * layers * checkpointed_input_bytes(model, micro_batch) // share
    formula = (
        f"{layers} layers x {micro_batch.element_bytes} x hidden x {micro_batch.tokens} tokens"
        + (f" / {share}" if share > 1 else "")
        + in_flight_note
    )
    tier: Tier = "host" if settings.activation_device == "cpu" else "gpu"
    source = _SOURCE if tier == "gpu" else "runtime/activation_checkpointing/checkpointing.py cpu_checkpointing"
    description = f"inputs of {layers} layers (gradient checkpointing)"
    return [MemoryItem(tier, "activations", description, size, formula, source, MICRO_BATCH)]


def _mask_items(settings: PlanSettings) -> list[MemoryItem]:
    """With Ulysses a rank attends over whole rows: the mask of packed rows stays until the next forward pass."""
    if settings.sequence_parallel_size == 1 or not settings.packing or settings.attention != "sdpa":
        return []
    length = settings.sequence_parallel_size * -(-settings.seq_length // settings.sequence_parallel_size)
    formula = (
        f"1 x {length:,} x {length:,} positions x {settings.micro_batch} row{'s' if settings.micro_batch > 1 else ''}"
    )
    source = "runtime/parallel/sequence_parallel.py of the harness"
    description = "attention mask of packed rows"
    return [MemoryItem("gpu", "activations", description, settings.micro_batch * length**2, formula, source, TRAINING)]


def _peak_items(
    model: ModelFacts, settings: PlanSettings, micro_batch: MicroBatchShape, *, head: bool
) -> list[MemoryItem]:
    """Forward ends with the logits; backward begins with them and later recomputes one layer. The larger one counts."""
    items = _head_items(model, settings, micro_batch) if head else []
    if not settings.checkpointing:
        return items
    recompute_bytes = layer_bytes(model, micro_batch) + recompute_gradient_bytes(model, micro_batch)
    if head and items[0].bytes >= recompute_bytes:
        return items
    formula = f"{_layer_formula(model, micro_batch)} + 2 x {micro_batch.element_bytes} x intermediate"
    recompute = MemoryItem(
        "gpu", "recompute", "one layer while it is recomputed", recompute_bytes, formula, _SOURCE, BACKWARD
    )
    return [recompute, *items[1:]]


def _head_items(model: ModelFacts, settings: PlanSettings, micro_batch: MicroBatchShape) -> list[MemoryItem]:
    """Head and loss in the backward pass, and at the end of the forward pass."""
    chunk = settings.loss_chunk_size
    if not chunk or settings.pipeline_parallel_size > 1:
        return [_full_logits_item(model, micro_batch, BACKWARD), _full_logits_item(model, micro_batch, ("forward",))]
    chunk, local_vocab = min(chunk, micro_batch.tokens), local_vocab_size(model, settings)
    saved_bytes = head_bytes(model, micro_batch) - 4 * model.vocab * micro_batch.tokens
    # The gradient of the head's weight is summed in fp32; in fp32 it becomes the weight's own gradient.
    weight, width = 4 * local_vocab * model.hidden, 4 if micro_batch.element_bytes == 4 else 6
    forward = saved_bytes + width * local_vocab * chunk + weight
    backward = saved_bytes + (0 if micro_batch.element_bytes == 4 else weight)
    formula = f"{width} x {local_vocab:,} vocab x {chunk} tokens, the gradient of the head in fp32, and the final norm"
    after = (
        "the gradient of the head in fp32, and the final norm" if micro_batch.element_bytes == 2 else "the final norm"
    )
    source = "patches/chunked_loss.py of the harness"
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


def _full_logits_item(model: ModelFacts, micro_batch: MicroBatchShape, phases: tuple[Phase, ...]) -> MemoryItem:
    norm = head_bytes(model, micro_batch) - 4 * model.vocab * micro_batch.tokens
    backward = phases == BACKWARD
    size = norm + (backward_logits_bytes(model, micro_batch) if backward else forward_logits_bytes(model, micro_batch))
    width = 12 if backward else 8 + (2 if micro_batch.element_bytes == 2 else 0)
    description = "logits and loss" if backward else "logits and loss at the end of the forward pass"
    formula = f"{width} x {model.vocab:,} vocab x {micro_batch.tokens} tokens, and the final norm"
    return MemoryItem("gpu", "logits", description, size, formula, _LOSS_SOURCE, phases)


def _layer_formula(model: ModelFacts, micro_batch: MicroBatchShape) -> str:
    shared = f" (tensor degree {micro_batch.tensor_parallel_size})" if micro_batch.tensor_parallel_size > 1 else ""
    tokens = micro_batch.tokens
    return f"{layer_bytes(model, micro_batch) // tokens:,} bytes per token and layer, {tokens} tokens{shared}"
