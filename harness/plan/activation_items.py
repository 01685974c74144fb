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
    recompute_gradient_bytes,
)
from harness.plan.memory_items import BACKWARD, MICRO_BATCH, TRAINING, MemoryItem, Phase, Tier
from harness.plan.plan_settings import PlanSettings
from harness.plan.trained_weights import ModelTraining, frozen_head_bytes, model_training
from harness.plan.zero_partitions import local_vocab_size, tensor_parallel_shard

_SOURCE = "transformers modules, saved tensors"
_LOSS_SOURCE = "transformers loss/loss_utils.py, logits in fp32"
_INPUTS_ON_DEVICE = 3
"""Of the layers whose inputs wait in host memory: the newest, and two that are still copied
(`_ActivationOffloadEngine`).
"""


def activation_items(model: ModelFacts, settings: PlanSettings) -> list[MemoryItem]:
    """The saved activations, and the head or one recomputed layer. Of a pipeline, the stage that needs more."""
    micro_batch = MicroBatchShape(
        settings.tokens_per_micro_batch,
        settings.seq_length,
        2 if settings.mixed_precision else 4,
        settings.attention,
        _tensor_ranks(model, settings),
    )
    if settings.pipeline_parallel_size == 1:
        training = _training_of(model, settings)
        return [
            *_layer_items(model, settings, micro_batch, 1, training),
            *_mask_items(settings),
            *_peak_items(model, settings, micro_batch, head=True, training=training),
        ]
    first = [
        *_layer_items(model, settings, micro_batch, min(settings.pipeline_parallel_size, settings.accumulation)),
        *_peak_items(model, settings, micro_batch, head=False),
    ]
    last = [*_layer_items(model, settings, micro_batch, 1), *_peak_items(model, settings, micro_batch, head=True)]
    return max(first, last, key=lambda items: sum(item.bytes for item in items if "backward" in item.phases))


def _tensor_ranks(model: ModelFacts, settings: PlanSettings) -> int:
    """Ranks that share out the activations of a layer: one where AutoTP leaves the MLPs whole, which are most of it."""
    degree = settings.tensor_parallel_size
    if degree == 1 or settings.pipeline_parallel_size > 1:
        return degree
    shard = tensor_parallel_shard(model, settings)
    return degree if shard.divides_mlp or not shard.is_known else 1


def _training_of(model: ModelFacts, settings: PlanSettings) -> ModelTraining | None:
    """Of a model that AutoTP or a pipeline cuts, all counts as trained."""
    if settings.tensor_parallel_size > 1 or settings.trainable is None:
        return None
    needs_grad = settings.reentrant_checkpointing and settings.checkpointing
    return model_training(model, settings.trainable, embeddings_need_grad=needs_grad)


def _layer_items(
    model: ModelFacts,
    settings: PlanSettings,
    micro_batch: MicroBatchShape,
    in_flight: int,
    training: ModelTraining | None = None,
) -> list[MemoryItem]:
    """Live from forward to backward. `in_flight`: micro-batches of which a 1F1B stage still needs the backward pass."""
    num_layers = -(-model.num_layers // settings.pipeline_parallel_size)
    if training is not None:
        num_layers = sum(layer.saves for layer in training.layers)
    in_flight_note = f", {in_flight} micro-batches in flight" if in_flight > 1 else ""
    if not settings.checkpointing:
        sizes = all_layer_bytes(model, micro_batch, num_layers, training)
        formula = _bytes_formula(max(sizes, default=0), micro_batch) + in_flight_note
        what = f"activations of {num_layers} layers"
        return [MemoryItem("gpu", "activations", what, in_flight * sum(sizes), formula, _SOURCE, MICRO_BATCH)]
    return _checkpointed_items(model, settings, micro_batch, in_flight * num_layers, in_flight_note)


def _checkpointed_items(
    model: ModelFacts, settings: PlanSettings, micro_batch: MicroBatchShape, num_inputs: int, note: str
) -> list[MemoryItem]:
    """Inputs of layers that are computed again. Those that wait in host memory are in page-locked blocks of their own,
    but for the last ones, which stay on the device (`keep_last_count`, `max_fwd_stash_count`); parts of them all go.
    """
    share = settings.tensor_parallel_size if settings.partition_activations else 1
    size = checkpointed_input_bytes(model, micro_batch) // share
    each = f"{micro_batch.element_bytes} x hidden x {micro_batch.tokens} tokens"
    divided = (f" / {share}" if share > 1 else "") + note

    def item(tier: Tier, count: int, source: str) -> MemoryItem:
        blocks = (size,) * count if tier == "host" and not settings.partition_activations else ()
        what, formula = f"inputs of {count} layers (gradient checkpointing)", f"{count} layers x {each}{divided}"
        return MemoryItem(tier, "activations", what, count * size, formula, source, MICRO_BATCH, pinned_blocks=blocks)

    if settings.activation_device != "cpu":
        return [item("gpu", num_inputs, _SOURCE)]
    on_device = 0 if settings.partition_activations else min(_INPUTS_ON_DEVICE, num_inputs)
    return [
        item("host", num_inputs - on_device, "runtime/activation_checkpointing/checkpointing.py cpu_checkpointing"),
        item("gpu", on_device, "runtime/activation_checkpointing/offload_activations.py"),
    ]


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
    model: ModelFacts,
    settings: PlanSettings,
    micro_batch: MicroBatchShape,
    *,
    head: bool,
    training: ModelTraining | None = None,
) -> list[MemoryItem]:
    """Forward ends with the logits; backward begins with them and later recomputes one layer. The larger one counts."""
    items = _head_items(model, settings, micro_batch, training) if head else []
    if not settings.checkpointing:
        return items
    saved_bytes = max(all_layer_bytes(model, micro_batch, 1, training), default=0)
    recompute_bytes = saved_bytes + recompute_gradient_bytes(model, micro_batch)
    if head and items[0].bytes >= recompute_bytes:
        return items
    formula = f"{_bytes_formula(saved_bytes, micro_batch)} + 2 x {micro_batch.element_bytes} x intermediate"
    recompute = MemoryItem(
        "gpu", "recompute", "one layer while it is recomputed", recompute_bytes, formula, _SOURCE, BACKWARD
    )
    return [recompute, *items[1:]]


def _head_items(
    model: ModelFacts, settings: PlanSettings, micro_batch: MicroBatchShape, training: ModelTraining | None
) -> list[MemoryItem]:
    """Head and loss in the backward pass, and at the end of the forward pass."""
    saved_bytes = head_bytes(model, micro_batch) - 4 * model.vocab * micro_batch.tokens
    has_gradient = training is None or training.trains_head(model)
    if training is not None:
        saved_bytes -= micro_batch.tokens * frozen_head_bytes(model, training, micro_batch.element_bytes)
    chunk = settings.loss_chunk_size
    if not chunk or settings.pipeline_parallel_size > 1:
        return [_full_logits_item(model, micro_batch, saved_bytes, p) for p in (BACKWARD, ("forward",))]
    chunk, local_vocab = min(chunk, micro_batch.tokens), local_vocab_size(model, settings)
    # The gradient of the head's weight is summed in fp32; in fp32 it becomes the weight's own gradient.
    weight, width = 4 * local_vocab * model.hidden if has_gradient else 0, 4 if micro_batch.element_bytes == 4 else 6
    forward = saved_bytes + width * local_vocab * chunk + weight
    backward = saved_bytes + (0 if micro_batch.element_bytes == 4 else weight)
    gradient = "the gradient of the head in fp32, and the final norm" if has_gradient else "the final norm"
    formula = f"{width} x {local_vocab:,} vocab x {chunk} tokens, {gradient}"
    after = gradient if micro_batch.element_bytes == 2 else "the final norm"
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


def _full_logits_item(
    model: ModelFacts, micro_batch: MicroBatchShape, norm: int, phases: tuple[Phase, ...]
) -> MemoryItem:
    backward = phases == BACKWARD
    size = norm + (backward_logits_bytes(model, micro_batch) if backward else forward_logits_bytes(model, micro_batch))
    width = 12 if backward else 8 + (2 if micro_batch.element_bytes == 2 else 0)
    description = "logits and loss" if backward else "logits and loss at the end of the forward pass"
    formula = f"{width} x {model.vocab:,} vocab x {micro_batch.tokens} tokens, and the final norm"
    return MemoryItem("gpu", "logits", description, size, formula, _LOSS_SOURCE, phases)


def _bytes_formula(layer_bytes: int, micro_batch: MicroBatchShape) -> str:
    shared = f" (tensor degree {micro_batch.tensor_parallel_size})" if micro_batch.tensor_parallel_size > 1 else ""
    tokens = micro_batch.tokens
    return f"{layer_bytes // tokens:,} bytes per token and layer, {tokens} tokens{shared}"
