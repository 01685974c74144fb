# SPDX-License-Identifier: Apache-2.0
"""Model states as memory items: parameters, gradients, master weights, optimizer states, and DeepSpeed's buffers.

Every formula was counted on live engines (tests/training/plan/test_plan_counts.py); activations are elsewhere. s12 =
deepspeed/runtime/zero/stage_1_and_2.py, f16 = deepspeed/runtime/fp16/fused_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.plan.memory.activation_items import MASK_SOURCE
from harness.plan.memory.memory_items import (
    BACKWARD,
    ENGINE,
    MICRO_BATCH,
    OPTIMIZER,
    STEP,
    TRAINING,
    ElementBytes,
    MemoryItem,
    Phase,
    Tier,
    at_moments,
    memory_item,
    pinned_item,
)
from harness.plan.memory.model_states_zero3 import master_and_state_items, stage3_items, step_item
from harness.plan.memory.zero_partitions import ZeroPartitions
from harness.plan.settings.plan_settings import PlanSettings

_ALL_REDUCE_NUMEL = 500_000_000
"""Elements after which stage 0 starts another bucket, whatever `reduce_bucket_size` (runtime/engine.py
MEMORY_OPT_ALLREDUCE_SIZE).
"""
_WHOLE_GRADIENTS = ("gradients_whole", "gradients before they are reduced")
_LARGEST_GRADIENT = ("gradient_largest", "largest gradient before it is reduced")
_GRADIENT_BUFFER = ("largest", "buffer for the largest gradient")


def model_state_items(settings: PlanSettings, partitions: ZeroPartitions) -> list[MemoryItem]:
    """Items of one rank, without activations. The rank is the one that owns most gradients."""
    stages = {0: _stage0_items, 1: _stage12_items, 2: _stage12_items, 3: stage3_items}
    items = [*_frozen_items(settings, partitions), *stages[settings.stage](settings, partitions)]
    if settings.keeps_reference:
        items.append(_reference_item(settings, partitions))
    return [item for item in items if item.bytes]


def _frozen_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """Frozen parameters in the training format or in 4 bits: no gradient, no master, no state. Stage 3 shards them."""
    label, source = ("frozen", "frozen parameters"), "harness/runtime/models/trainable_parameters.py"
    if settings.stage < 3:
        whole = ElementBytes(settings.param_bytes, partitions.unquantized_frozen, "P frozen")
        yield memory_item("gpu", label, whole, source)
        yield quantized_item("gpu", ("frozen", "frozen parameters in 4 bits"), partitions)
        largest = ElementBytes(settings.param_bytes, partitions.quantized.largest, "largest of them")
        label, source = ("temporary", "one of them in the training format"), "bitsandbytes gemm_4bit, dequantize_4bit"
        yield at_moments(memory_item("gpu", label, largest, source, MICRO_BATCH), "forward layer", "backward layer")
    elif settings.param_device != "nvme":  # there they are among the parameters on the disk
        shard = ElementBytes(settings.param_bytes, partitions.frozen_shard, "P frozen / N")
        on_gpu = settings.param_device == "none"
        yield memory_item("gpu", label, shard, source) if on_gpu else pinned_item(label, shard, source)


def _reference_item(settings: PlanSettings, partitions: ZeroPartitions) -> MemoryItem:
    """The weights before training, of an engine without an optimizer: whole on every rank below stage 3."""
    ranks = settings.zero_world_size if settings.stage == 3 else 1
    label = ("reference", "weights of the reference model")
    amount = ElementBytes(settings.param_bytes, -(-partitions.whole // ranks), "P / N" if ranks > 1 else "P")
    tier: Tier = "gpu" if settings.param_device == "none" else "host"
    return memory_item(tier, label, amount, "trl models/utils.py prepare_deepspeed")


def quantized_item(
    tier: Tier, label: tuple[str, str], partitions: ZeroPartitions, phases: tuple[Phase, ...] = ENGINE
) -> MemoryItem:
    """The 4-bit weights with their scales, whole on every rank; of 0 bytes if there are none."""
    formula = f"{partitions.quantized.bytes / max(1, partitions.quantized.numel):.3f} P in 4 bits"
    return MemoryItem(
        tier, *label, partitions.quantized.bytes, formula, "bitsandbytes nn/modules.py Params4bit", phases
    )


def _first_state_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    if settings.keeps_first_states:
        first = ElementBytes(settings.param_bytes, partitions.total, "P")
        label = ("unused_states", "states of a first Adagrad, which nothing reads")
        yield memory_item("gpu", label, first, "s12 initialize_optimizer_states")


def _gradient_phases(settings: PlanSettings) -> tuple[Phase, ...]:
    """The phases in which gradients exist: with accumulation the forward pass of the next micro-batch too."""
    return MICRO_BATCH if settings.accumulation > 1 else BACKWARD


def _stage0_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    param_bytes, num_parameters = settings.param_bytes, partitions.total
    whole = ElementBytes(param_bytes, num_parameters, "P")
    yield memory_item("gpu", ("parameters", "parameters"), whole, "model dtype")
    label, phases = ("gradients", "gradients"), _gradient_phases(settings) + STEP
    yield memory_item("gpu", label, whole, "torch .grad", phases)
    if settings.mixed_precision:
        masters = ElementBytes(4, num_parameters, "P")
        yield memory_item("gpu", ("master", "fp32 master weights"), masters, "f16 fp32_groups_flat")
        # 4 bytes cast tensor by tensor, and 4 flattened
        gradients = ElementBytes(8 if settings.flattens_masters else 4, num_parameters, "P")
        row = memory_item("gpu", ("temporary", "fp32 gradients in the step"), gradients, "f16 step", STEP)
        yield at_moments(row, "update")
        # and, where masters are no flat buffer, one of each weight
        zeros = ElementBytes(4 if settings.flattens_masters else 4 + param_bytes, num_parameters, "P")
        label = ("temporary", "gradients that create the states")
        yield memory_item("gpu", label, zeros, "f16 initialize_optimizer_states", ("load",))
    yield from _first_state_items(settings, partitions)
    yield from _stage0_state_items(settings, partitions)
    yield _all_reduce_item(settings, partitions)


def _stage0_state_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """An engine with masters steps once while it is built, so that a checkpoint's states come beside its own."""
    num_parameters = partitions.total
    yield step_item(
        settings, num_parameters if settings.step_temporaries[0] < 2 else partitions.largest_gradient, "gpu"
    )
    width = 4 if settings.mixed_precision else settings.state_bytes
    states = ElementBytes(width * settings.num_states, num_parameters, "P")
    if not settings.mixed_precision:
        label = ("states", "optimizer states, from the first step on")
        yield memory_item("gpu", label, states, "torch optimizer", OPTIMIZER)
        return
    yield memory_item("gpu", ("states", "optimizer states"), states, "f16 initialize_optimizer_states")
    label = ("resume", "optimizer states of the checkpoint, beside the engine's")
    yield memory_item("gpu", label, states, "f16 load_state_dict", ("resume",))


def _all_reduce_item(settings: PlanSettings, partitions: ZeroPartitions) -> MemoryItem:
    """Gradients in one buffer, and in the format that ranks reduce where it differs. One is full beyond its limit."""
    width = settings.param_bytes + (settings.comm_bytes if settings.comm_bytes != settings.param_bytes else 0)
    numel = min(_ALL_REDUCE_NUMEL + partitions.largest_gradient, partitions.total)
    amount = ElementBytes(width, numel, "P" if numel == partitions.total else "500 million and the largest parameter")
    row = memory_item("gpu", ("bucket", "all-reduce bucket"), amount, "runtime/engine.py allreduce_bucket", BACKWARD)
    return at_moments(row, "all-reduce")


def _stage12_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    flat = ElementBytes(settings.param_bytes, partitions.padded_total, "P")
    yield at_moments(
        memory_item("gpu", ("parameters", "parameters"), flat, "s12 bit16_groups_flat"), "flatten", "masters", "engine"
    )
    if settings.uses_bf16_optimizer:
        yield from _bf16_optimizer_items(settings, partitions)
        return
    yield from _stage12_gradient_items(settings, partitions)
    optimizer = _stage12_optimizer_items if settings.optimizer_device == "none" else _stage12_cpu_optimizer_items
    for item in optimizer(settings, partitions):
        yield at_moments(item, "masters", "engine", *item.moments)


def _stage12_gradient_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    grad_bytes, param_bytes = settings.grad_bytes, settings.param_bytes
    if settings.stage == 1:
        whole = ElementBytes(param_bytes, partitions.total, "P")
        yield memory_item("gpu", _WHOLE_GRADIENTS, whole, "torch .grad", _gradient_phases(settings))
    else:
        for count, name, moment in (
            (partitions.head_gradient if settings.mixed_precision else 0, "head", "loss gradient"),
            (partitions.largest_gradient, "largest parameter", "layer gradients"),
        ):
            amount = ElementBytes(param_bytes, count, name)
            yield at_moments(memory_item("gpu", _LARGEST_GRADIENT, amount, "torch .grad", BACKWARD), moment)
    partition_gradients = _owned_gradients(settings, partitions)
    if grad_bytes != param_bytes:
        partition_gradients = ElementBytes(grad_bytes, partitions.partition_size, "P / N")
    if settings.optimizer_device == "none":
        label = ("gradients", "gradients of this rank's partition")
        phases = STEP if settings.stage == 1 else _gradient_phases(settings) + STEP
        yield memory_item("gpu", label, partition_gradients, "s12 averaged_gradients", phases)
    elif grad_bytes != param_bytes:
        label = ("gradients", "gradients of this rank's partition, fp32")
        yield memory_item(
            "gpu", label, partition_gradients, "s12 get_gradient_for_cpu_offload", _gradient_phases(settings) + STEP
        )
    if settings.contiguous_gradients or settings.optimizer_device != "none":
        # one for each format that autocast communicates in, all of them as wide as the model's
        num_buckets = (2 if settings.overlap_comm else 1) * (2 if settings.autocast_bytes else 1)
        bucket = ElementBytes(settings.comm_bytes * num_buckets, settings.reduce_bucket_size, "reduce_bucket_size")
        row = memory_item("gpu", ("bucket", "gradient bucket"), bucket, "s12 setup_buckets", BACKWARD)
        yield at_moments(row, "backward layer", "layer gradients")  # made by the hook of the first gradient


def _owned_gradients(settings: PlanSettings, partitions: ZeroPartitions) -> ElementBytes:
    numel = partitions.owned_gradients_of(settings.rank)
    return ElementBytes(settings.param_bytes, numel, "parameters that touch this partition")


def later_gradient_items(
    settings: PlanSettings, partitions: ZeroPartitions, activations: Iterable[MemoryItem], num_layers: int
) -> Iterator[MemoryItem]:
    """Stage 2 adds the gradients of a later micro-batch when its backward pass has ended; until then they are in a
    buffer of their own, made with the first of this rank's. Activations of the layers behind that one are gone.
    """
    is_summed = settings.stage == 2 and settings.accumulation > 1 and settings.grad_bytes == settings.param_bytes
    if not is_summed or settings.optimizer_device != "none":
        return
    label, source = ("new_gradients", "gradients of a micro-batch before they are added"), "s12 copy_grads_in_partition"
    item = memory_item("gpu", label, _owned_gradients(settings, partitions), source, BACKWARD)
    by_layer = (each for each in activations if each.phases == MICRO_BATCH and each.source != MASK_SOURCE)
    kept, ranks = sum(each.bytes for each in by_layer if each.tier == "gpu"), len(partitions.owned_gradients)
    behind = max(1 / num_layers, 0 if settings.rank is None else 1 - (settings.rank % ranks + 1) / ranks)
    behind -= (num_layers - 1) % settings.checkpoint_every / num_layers  # these are gone before layers are recomputed
    rest = max(0, item.bytes - max(0, round(behind * kept)))
    yield at_moments(item._replace(bytes=rest), "backward layer", "layer gradients")


def _stage12_optimizer_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    yield from master_and_state_items(settings, partitions, "s12 single_partition_of_fp32_groups")
    yield from _first_state_items(settings, partitions)
    if partitions.muon_partition:
        muon = ElementBytes(settings.comm_bytes, partitions.muon_partition, "P of matrices / N")
        label = ("momentum", "next momentum, until the step has succeeded")
        yield memory_item("gpu", label, muon, "s12 _muon_pending_momentum", TRAINING)
        label = ("gradients", "updates of the matrices, by Muon")
        yield memory_item("gpu", label, muon, "s12 _apply_muon_update", STEP)
    cast = ElementBytes(settings.master_bytes, partitions.partition_size, "P / N")
    flat = ElementBytes(settings.grad_bytes, partitions.partition_size, "P / N")
    label = ("temporary", "gradient of the step, as wide as the master")
    yield at_moments(memory_item("gpu", label, cast, "s12 step", STEP), "update")
    if settings.grad_bytes != settings.master_bytes:
        label = ("temporary", "flat gradient before its cast")
        yield at_moments(memory_item("gpu", label, flat, "s12 step", STEP), "update")
    largest = min(partitions.largest_gradient, partitions.partition_size)
    norm, label = ElementBytes(8, largest, "largest parameter"), ("temporary", "gradient in fp64, for its norm")
    yield at_moments(memory_item("gpu", label, norm, "s12 get_grad_norm_direct", STEP), "norm")


def _stage12_cpu_optimizer_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    param_bytes = settings.param_bytes
    yield from master_and_state_items(settings, partitions, "s12 single_partition_of_fp32_groups", "host")
    label = ("master_gradients", "gradients of the master weights")
    gradients = ElementBytes(settings.master_bytes, partitions.partition_size, "P / N")
    yield pinned_item(label, gradients, "s12 initialize_optimizer_states")
    label = ("staging", "updated parameters on their way to the device")
    updated = ElementBytes(param_bytes, partitions.partition_size, "P / N")
    yield pinned_item(label, updated, "s12 param_buffer_of_bit16_for_cpu_offload_groups")
    largest = ElementBytes(param_bytes, partitions.largest_gradient, "largest parameter")
    yield pinned_item(_GRADIENT_BUFFER, largest, "s12 temp_grad_buffer_for_cpu_offload")
    yield memory_item("gpu", _GRADIENT_BUFFER, largest, "s12 temp_grad_buffer_for_gpu_offload")
    if (
        settings.stage == 2  # stage 1 sums whole gradients on the device
        and settings.accumulation > 1
        and settings.grad_bytes == param_bytes
        and settings.master_bytes == 4
    ):
        label, owned = ("accumulated", "gradients between micro-batches"), _owned_gradients(settings, partitions)
        yield pinned_item(label, owned, "s12 accumulated_grads_in_cpu", phases=TRAINING)


def _bf16_optimizer_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """Stage 1 with fp32 accumulation: gradients are not sharded at all. bf = deepspeed/runtime/bf16_optimizer.py."""
    label = ("gradients", "fp32 gradients, whole on every rank")
    yield memory_item("gpu", label, ElementBytes(4, partitions.padded_total, "P"), "bf fp32_groups_gradients_flat")
    whole = ElementBytes(settings.param_bytes, partitions.total, "P")
    yield memory_item("gpu", ("gradients_whole", "16-bit gradients"), whole, "torch .grad", _gradient_phases(settings))
    yield from master_and_state_items(settings, partitions, "bf fp32_groups_flat_partition")
