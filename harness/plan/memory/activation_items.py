# SPDX-License-Identifier: Apache-2.0
"""Memory items of activations, logits and recomputation for one rank; their bytes are in `activation_bytes`."""

from __future__ import annotations

from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.activation_bytes import (
    MicroBatchShape,
    all_layer_bytes,
    backward_logits_bytes,
    checkpointed_input_bytes,
    forward_layer_bytes,
    forward_logits_bytes,
    head_bytes,
    kept_attention_bytes,
    layer_bytes_in_order,
    mlp_tile_bytes,
    recompute_gradient_bytes,
)
from harness.plan.memory.memory_items import (
    BACKWARD,
    FORWARD,
    MICRO_BATCH,
    MOMENTS,
    TRAINING,
    MemoryItem,
    Phase,
    Tier,
    at_moments,
    keep_largest_moments,
)
from harness.plan.memory.zero_partitions import local_vocab_size, tensor_parallel_shard
from harness.plan.settings.checkpointed_layers import count_recomputed, is_recomputed, most_inputs, tiles_mlp
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.weights.trained_weights import ModelTraining, frozen_head_bytes, model_training

_SOURCE = "transformers modules, saved tensors"
MASK_SOURCE = "transformers masking_utils.py"
_LOSS_SOURCE = "transformers loss/loss_utils.py, logits in fp32"
_INPUTS_ON_DEVICE = 2
"""Of the layers whose inputs wait in host memory (`_ActivationOffloadEngine`): the newest, which has no buffer there,
and one still being copied. In the forward pass two more: that of the layer that computes, and the first, which the
model holds.
"""


def activation_items(model: ModelFacts, settings: PlanSettings) -> list[MemoryItem]:
    """The saved activations, and the head or one recomputed layer. Of a pipeline, the stage that needs more."""
    return [_gone_by_the_all_reduce(item) for item in _micro_batch_items(model, settings)]


def _gone_by_the_all_reduce(item: MemoryItem) -> MemoryItem:
    """What has no moment of its own in the backward pass is there until its last layer."""
    if "backward" not in item.phases or "step" in item.phases or set(item.moments) & set(MOMENTS["backward"]):
        return item
    return at_moments(item, *item.moments, *(name for name in MOMENTS["backward"] if name != "all-reduce"))


def _micro_batch_items(model: ModelFacts, settings: PlanSettings) -> list[MemoryItem]:
    micro_batch = _micro_batch_shape(model, settings)
    if settings.pipeline_parallel_size == 1:
        training = _training_of(model, settings)
        return [
            *_layer_items(model, settings, micro_batch, 1, training),
            *_mask_items(settings),
            *_peak_items(model, settings, micro_batch, head=True, training=training),
        ]
    masks = _mask_items(settings)  # each stage makes its own
    first = [
        *_layer_items(model, settings, micro_batch, min(settings.pipeline_parallel_size, settings.accumulation)),
        *_peak_items(model, settings, micro_batch, head=False),
    ]
    last = [*_layer_items(model, settings, micro_batch, 1), *_peak_items(model, settings, micro_batch, head=True)]
    return [*masks, *max(first, last, key=_backward_bytes)]


def _backward_bytes(items: list[MemoryItem]) -> int:
    return sum(item.bytes for item in keep_largest_moments(items) if item.tier == "gpu" and "backward" in item.phases)


def layer_activation_bytes_on_gpu(model: ModelFacts, settings: PlanSettings) -> int:
    """Bytes that one layer keeps there from the forward to the backward pass."""
    micro_batch = _micro_batch_shape(model, settings)
    if not settings.checkpointing:
        return max(all_layer_bytes(model, micro_batch, 1, _training_of(model, settings)), default=0)
    return checkpointed_input_bytes(model, micro_batch) if settings.activation_device == "none" else 0


def _micro_batch_shape(model: ModelFacts, settings: PlanSettings) -> MicroBatchShape:
    return MicroBatchShape(
        settings.tokens_per_micro_batch,
        settings.seq_length,
        settings.param_bytes,
        settings.attention,
        _tensor_ranks(model, settings),
        # With Ulysses a rank attends over whole rows.
        settings.seq_length * settings.sequence_parallel_size if _has_masks(settings) else 0,
        settings.mlp_tile_size if tiles_mlp(settings) else 0,
        settings.sequence_parallel_size > 1,
    )


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
    kept = _kept_layers(model, settings, micro_batch, num_layers, training)
    items = []
    if kept or not settings.checkpointing:
        formula = _bytes_formula(max(kept, default=0), micro_batch) + in_flight_note
        what = f"activations of {len(kept)} layers"
        items.append(MemoryItem("gpu", "activations", what, in_flight * sum(kept), formula, _SOURCE, MICRO_BATCH))
    if not settings.checkpointing:
        return items
    per_stage = num_layers - len(kept)
    inputs = in_flight * most_inputs(per_stage, settings.layers_per_segment)[0]
    items += _checkpointed_items(model, settings, micro_batch, inputs, in_flight_note)
    if settings.keeps_attention:
        size = kept_attention_bytes(model, micro_batch)
        formula = f"{inputs} layers x {_bytes_formula(size, micro_batch)}"
        label, source = (
            f"attention outputs of {inputs} recomputed layers",
            "runtime/models/kept_attention.py of the harness",
        )
        items.append(MemoryItem("gpu", "activations", label, inputs * size, formula, source, MICRO_BATCH))
    return items


def _kept_layers(
    model: ModelFacts,
    settings: PlanSettings,
    micro_batch: MicroBatchShape,
    num_layers: int,
    training: ModelTraining | None,
) -> list[int]:
    """Bytes of each layer that keeps its activations; of the layers of a pipeline stage the heaviest, those first."""
    if not settings.checkpointing or settings.pipeline_parallel_size > 1:
        sizes = all_layer_bytes(model, micro_batch, num_layers, training)
        recomputed = count_recomputed(num_layers, settings.checkpoint_every) if settings.checkpointing else 0
        return sizes[: num_layers - recomputed]
    in_order = layer_bytes_in_order(model, micro_batch, training)
    return [size for index, size in enumerate(in_order) if size and not is_recomputed(index, settings)]


def _checkpointed_items(
    model: ModelFacts, settings: PlanSettings, micro_batch: MicroBatchShape, num_inputs: int, note: str
) -> list[MemoryItem]:
    """Inputs of layers that are computed again. Those that wait in host memory are in page-locked buffers of their own,
    which DeepSpeed keeps for the next micro-batch; the last ones are on the device, too.
    """
    share = settings.tensor_parallel_size if settings.partition_activations else 1
    size = checkpointed_input_bytes(model, micro_batch) // share
    each = f"{micro_batch.element_bytes} x hidden x {micro_batch.tokens} tokens"
    divided = (f" / {share}" if share > 1 else "") + note

    def item(tier: Tier, count: int, source: str, phases: tuple[Phase, ...] = MICRO_BATCH) -> MemoryItem:
        blocks = (size,) * count if tier == "host" and not settings.partition_activations else ()
        what, formula = f"inputs of {count} layers (gradient checkpointing)", f"{count} layers x {each}{divided}"
        return MemoryItem(tier, "activations", what, count * size, formula, source, phases, pinned_blocks=blocks)

    if settings.activation_device != "cpu":
        return [item("gpu", num_inputs, _SOURCE)]
    if settings.partition_activations:
        return [item("host", num_inputs, "runtime/activation_checkpointing/checkpointing.py cpu_checkpointing")]
    source = "runtime/activation_checkpointing/offload_activations.py"
    forward, backward = (min(count, num_inputs) for count in (_INPUTS_ON_DEVICE + 2, _INPUTS_ON_DEVICE))
    return [
        item("host", max(0, num_inputs - 1), source, TRAINING),
        item("gpu", forward, source, FORWARD),
        item("gpu", backward, source, BACKWARD),
    ]


def _has_masks(settings: PlanSettings) -> bool:
    """Packed rows have masks, and several rows that are padded; with Ulysses padded rows have none."""
    return settings.packing or (settings.micro_batch > 1 and settings.sequence_parallel_size == 1)


def _mask_items(settings: PlanSettings) -> list[MemoryItem]:
    """The mask of packed or padded rows, which `transformers` makes for a forward pass. With Ulysses it is that of a
    rank's part of each row, and attends to nothing; that of whole packed rows stays until the next forward pass.
    """
    if settings.attention != "sdpa" or not _has_masks(settings):
        return []
    degree = settings.sequence_parallel_size
    part = -(-settings.seq_length // degree)
    items = [_mask_item("mask of attention", settings.micro_batch, part, MASK_SOURCE, MICRO_BATCH)]
    items += _converted_mask_items(settings, degree * part)
    if degree > 1 and settings.packing:
        source = "runtime/parallel/sequence_parallel.py of the harness"
        items.append(_mask_item("attention mask of packed rows", settings.micro_batch, degree * part, source, TRAINING))
    return items


def _converted_mask_items(settings: PlanSettings, length: int) -> list[MemoryItem]:
    """A layer inverts the mask and makes one in the queries' format, which a layer without recomputation keeps."""
    pairs, source = settings.micro_batch * length**2, "torch scaled_dot_product_attention, convert_boolean_attn_mask"
    width = 1 + (settings.param_bytes if settings.checkpointing else 0)
    what, squares = "mask while a layer converts it", f"{length:,} x {length:,} positions"
    forward = MemoryItem("gpu", "activations", what, width * pairs, f"{width} x {squares}", source, FORWARD)
    backward = MemoryItem("gpu", "activations", what, pairs, f"1 x {squares}", source, BACKWARD)
    items = [at_moments(forward, "forward layer")]
    return [*items, at_moments(backward, "backward layer")] if settings.checkpointing else items


def _mask_item(what: str, rows: int, length: int, source: str, phases: tuple[Phase, ...]) -> MemoryItem:
    formula = f"1 x {length:,} x {length:,} positions x {rows} row{'s' if rows > 1 else ''}"
    return MemoryItem("gpu", "activations", what, rows * length**2, formula, source, phases)


def _peak_items(
    model: ModelFacts,
    settings: PlanSettings,
    micro_batch: MicroBatchShape,
    *,
    head: bool,
    training: ModelTraining | None = None,
) -> list[MemoryItem]:
    """Forward ends with the logits; backward begins with them and later differentiates one layer after the other, which
    checkpointing computes again. A reentrant function holds the layer's output meanwhile; with tiles other tensors are
    gone by then.
    """
    items, output_bytes = _head_items(model, settings, micro_batch, training) if head else [], 0
    saved_bytes = max(all_layer_bytes(model, micro_batch, 1, training), default=0) if settings.checkpointing else 0
    recompute_bytes = saved_bytes + recompute_gradient_bytes(model, micro_batch)
    if micro_batch.mlp_tile:
        recompute_bytes += mlp_tile_bytes(model, micro_batch)
    elif settings.checkpointing and settings.reentrant_checkpointing:
        output_bytes = checkpointed_input_bytes(model, micro_batch)
        recompute_bytes += output_bytes
    if settings.keeps_attention:
        recompute_bytes -= kept_attention_bytes(model, micro_batch)
    recompute_bytes = max(0, recompute_bytes - _freed_before_recomputation(model, settings, micro_batch, training))
    formula = f"2 x {micro_batch.element_bytes} x intermediate"
    for size in filter(None, (output_bytes, saved_bytes)):
        formula = f"{_bytes_formula(size, micro_batch)} + {formula}"
    what = "gradients inside one layer"
    if settings.checkpointing:
        what = "one layer while it is recomputed"
    elif micro_batch.mlp_tile:
        what = "a tile of an MLP while it is recomputed"
    recompute = MemoryItem("gpu", "recompute", what, recompute_bytes, formula, _SOURCE, BACKWARD)
    items.append(at_moments(recompute, "backward layer"))
    if settings.checkpointing and settings.layers_per_segment > 1:
        items.append(_segment_item(model, settings, micro_batch, training))
    if settings.checkpointing and settings.pipeline_parallel_size == 1:
        size = forward_layer_bytes(model, micro_batch)
        formula = _bytes_formula(size, micro_batch)
        computed = MemoryItem("gpu", "recompute", "one layer while it is computed", size, formula, _SOURCE, FORWARD)
        items.append(at_moments(computed, "forward layer"))
    return items


def _segment_item(
    model: ModelFacts, settings: PlanSettings, micro_batch: MicroBatchShape, training: ModelTraining | None
) -> MemoryItem:
    """Inputs of the layers of one segment, which are computed before the first of these layers is differentiated."""
    num_layers = model.num_layers if training is None else sum(layer.saves for layer in training.layers)
    count = most_inputs(num_layers, settings.layers_per_segment)[1]
    size = count * checkpointed_input_bytes(model, micro_batch)
    formula = f"{count} layers x {micro_batch.element_bytes} x hidden x {micro_batch.tokens} tokens"
    what, source = "inputs of the layers of a segment", "runtime/models/sequential_checkpointing.py of the harness"
    return at_moments(MemoryItem("gpu", "activations", what, size, formula, source, BACKWARD), "backward layer")


def _freed_before_recomputation(
    model: ModelFacts, settings: PlanSettings, micro_batch: MicroBatchShape, training: ModelTraining | None
) -> int:
    """Activations of the layers behind the last recomputed one, which are gone when the backward pass comes to it."""
    num_layers = -(-model.num_layers // settings.pipeline_parallel_size)
    behind = (num_layers - 1) % settings.checkpoint_every
    return sum(layer_bytes_in_order(model, micro_batch, training)[-behind:]) if behind else 0


def _head_items(
    model: ModelFacts, settings: PlanSettings, micro_batch: MicroBatchShape, training: ModelTraining | None
) -> list[MemoryItem]:
    """Head and loss in the backward pass, and at the end of the forward pass."""
    saved_bytes = head_bytes(model, micro_batch) - 4 * model.vocab * micro_batch.tokens
    has_gradient = training is None or training.trains_head(model)
    if training is not None:
        width, tiles = micro_batch.element_bytes, bool(micro_batch.mlp_tile)
        saved_bytes -= micro_batch.tokens * frozen_head_bytes(model, training, width, tiles_norms=tiles)
    chunk = settings.loss_chunk_size
    if not chunk or settings.pipeline_parallel_size > 1:
        kept = micro_batch.element_bytes * model.vocab * micro_batch.tokens if settings.keeps_logits else 0
        full = (
            _full_logits_item(model, micro_batch, size, phases)
            for size, phases in ((saved_bytes + kept, BACKWARD), (saved_bytes, FORWARD))
        )
        return [at_moments(item, "loss", "loss gradient") for item in full]
    chunk, local_vocab = min(chunk, micro_batch.tokens), local_vocab_size(model, settings)
    # The gradient of the head's weight is summed in fp32; in fp32 it becomes the weight's own gradient.
    weight, width = 4 * local_vocab * model.hidden if has_gradient else 0, 4 if micro_batch.element_bytes == 4 else 6
    forward = saved_bytes + width * local_vocab * chunk + weight
    backward = saved_bytes + (0 if micro_batch.element_bytes == 4 else weight)
    gradient = "the gradient of the head in fp32, and the final norm" if has_gradient else "the final norm"
    formula = f"{width} x {local_vocab:,} vocab x {chunk} tokens, {gradient}"
    after = gradient if micro_batch.element_bytes == 2 else "the final norm"
    source = "patches/chunked_loss.py of the harness"
    before = "logits of a chunk and loss at the end of the forward pass"
    items = [
        MemoryItem("gpu", "logits", "head and loss", backward, after, source, BACKWARD),
        MemoryItem("gpu", "logits", before, forward, formula, source, FORWARD),
    ]
    return [at_moments(item, "loss", "loss gradient") for item in items]


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
