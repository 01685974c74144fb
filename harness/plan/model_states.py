"""Model states as rows: parameters, gradients, master weights, optimizer states, and the buffers that DeepSpeed keeps.

Every formula was counted on live engines (tests/with_deepspeed/test_plan_counts.py); activations are elsewhere.
s12 = deepspeed/runtime/zero/stage_1_and_2.py, f16 = deepspeed/runtime/fp16/fused_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.plan.memory_items import (
    BACKWARD,
    MICRO_BATCH,
    STEP,
    TRAINING,
    ElementBytes,
    MemoryItem,
    Phase,
    memory_item,
    pinned_item,
)
from harness.plan.model_states_zero3 import master_and_state_items, stage3_items
from harness.plan.plan_settings import PlanSettings
from harness.plan.zero_partitions import ZeroPartitions

_WHOLE_GRADIENTS = ("gradients_whole", "gradients before they are reduced")
_LARGEST_GRADIENT = ("gradient_largest", "largest gradient before it is reduced")
_GRADIENT_BUFFER = ("largest", "buffer for the largest gradient")


def model_state_items(s: PlanSettings, z: ZeroPartitions) -> list[MemoryItem]:
    """Rows of one rank, without activations. The rank is the one that owns most gradients."""
    stages = {0: _stage0_items, 1: _stage12_items, 2: _stage12_items, 3: stage3_items}
    return [row for row in stages[s.stage](s, z) if row.bytes]


def _gradient_phases(s: PlanSettings) -> tuple[Phase, ...]:
    """When gradients are there that the next micro-batch adds to: in its forward pass too."""
    return MICRO_BATCH if s.accumulation > 1 else BACKWARD


def _stage0_items(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    b, p = s.param_bytes, z.total
    yield memory_item("gpu", ("parameters", "parameters"), ElementBytes(b, p, "P"), "model dtype")
    yield memory_item(
        "gpu", ("gradients", "gradients"), ElementBytes(b, p, "P"), "torch .grad", _gradient_phases(s) + STEP
    )
    if s.mixed_precision:
        yield memory_item("gpu", ("master", "fp32 master weights"), ElementBytes(4, p, "P"), "f16 fp32_groups_flat")
        # 4 bytes cast tensor by tensor, 4 flattened
        yield memory_item("gpu", ("temporary", "fp32 gradients in the step"), ElementBytes(8, p, "P"), "f16 step", STEP)
    states = ElementBytes(4 * s.num_states, p, "P")
    yield memory_item(
        "gpu", ("states", "optimizer states, from the first step on"), states, "torch optimizer", TRAINING
    )
    bucket = ElementBytes(s.comm_bytes, min(s.reduce_bucket_size, p), "min(bucket, P)")
    source = "runtime/engine.py buffered_allreduce_fallback"
    yield memory_item("gpu", ("bucket", "all-reduce bucket"), bucket, source, STEP)


def _stage12_items(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    yield memory_item(
        "gpu", ("parameters", "parameters"), ElementBytes(s.param_bytes, z.padded_total, "P"), "s12 bit16_groups_flat"
    )
    if s.uses_bf16_optimizer:
        yield from _bf16_optimizer(s, z)
        return
    yield from _stage12_gradients(s, z)
    yield from _stage12_optimizer(s, z) if s.optimizer_device == "none" else _stage12_optimizer_on_cpu(s, z)


def _stage12_gradients(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    g, b = s.grad_bytes, s.param_bytes
    if s.stage == 1:
        yield memory_item("gpu", _WHOLE_GRADIENTS, ElementBytes(b, z.total, "P"), "torch .grad", _gradient_phases(s))
    else:
        yield memory_item(
            "gpu", _LARGEST_GRADIENT, ElementBytes(b, z.largest_parameter, "largest parameter"), "torch .grad", BACKWARD
        )
    kept = (
        ElementBytes(g, z.partition_size, "P / N")
        if g != b
        else ElementBytes(g, max(z.owned_gradients), "parameters that touch this partition")
    )
    if s.optimizer_device == "none":
        what, phases = (
            ("gradients", "gradients of this rank's partition"),
            STEP if s.stage == 1 else _gradient_phases(s) + STEP,
        )
        yield memory_item("gpu", what, kept, "s12 averaged_gradients", phases)
    elif g != b:
        what = ("gradients", "gradients of this rank's partition, fp32")
        yield memory_item("gpu", what, kept, "s12 get_gradient_for_cpu_offload", _gradient_phases(s) + STEP)
    if s.contiguous_gradients or s.optimizer_device != "none":
        bucket = ElementBytes(s.comm_bytes * (2 if s.overlap_comm else 1), s.reduce_bucket_size, "reduce_bucket_size")
        yield memory_item("gpu", ("bucket", "gradient bucket"), bucket, "s12 setup_buckets", BACKWARD)


def _stage12_optimizer(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    yield from master_and_state_items(s, z, "s12 single_partition_of_fp32_groups")
    cast, flat = (
        ElementBytes(s.master_bytes, z.partition_size, "P / N"),
        ElementBytes(s.grad_bytes, z.partition_size, "P / N"),
    )
    yield memory_item("gpu", ("temporary", "gradient of the step, as wide as the master"), cast, "s12 step", STEP)
    if s.grad_bytes != s.master_bytes:
        yield memory_item("gpu", ("temporary", "flat gradient before its cast"), flat, "s12 step", STEP)


def _stage12_optimizer_on_cpu(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    b = s.param_bytes
    yield from master_and_state_items(s, z, "s12 single_partition_of_fp32_groups", "host")
    what = ("master_gradients", "gradients of the master weights")
    yield pinned_item(what, ElementBytes(s.master_bytes, z.partition_size, "P / N"), "s12 initialize_optimizer_states")
    what = ("staging", "updated parameters on their way to the device")
    yield pinned_item(
        what, ElementBytes(b, z.partition_size, "P / N"), "s12 param_buffer_of_bit16_for_cpu_offload_groups"
    )
    largest = ElementBytes(b, z.largest_parameter, "largest parameter")
    yield pinned_item(_GRADIENT_BUFFER, largest, "s12 temp_grad_buffer_for_cpu_offload")
    yield memory_item("gpu", _GRADIENT_BUFFER, largest, "s12 temp_grad_buffer_for_gpu_offload")
    if s.stage == 2 and s.accumulation > 1 and s.grad_bytes == b and s.master_bytes == 4:
        own = ElementBytes(b, max(z.owned_gradients), "parameters that touch this partition")
        what = ("accumulated", "gradients between micro-batches")
        yield pinned_item(what, own, "s12 accumulated_grads_in_cpu", phases=TRAINING)


def _bf16_optimizer(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    """Stage 1 with fp32 accumulation: gradients are not sharded at all. bf = deepspeed/runtime/bf16_optimizer.py."""
    what = ("gradients", "fp32 gradients, whole on every rank")
    yield memory_item("gpu", what, ElementBytes(4, z.padded_total, "P"), "bf fp32_groups_gradients_flat")
    whole = ElementBytes(s.param_bytes, z.total, "P")
    yield memory_item("gpu", ("gradients_whole", "16-bit gradients"), whole, "torch .grad", _gradient_phases(s))
    yield from master_and_state_items(s, z, "bf fp32_groups_flat_partition")
