"""Model states as rows: parameters, gradients, master weights, optimizer states, and the buffers that DeepSpeed keeps.

Every formula was counted on live engines (tests/with_deepspeed/test_plan_counts.py); activations are elsewhere.
s12 = deepspeed/runtime/zero/stage_1_and_2.py, f16 = deepspeed/runtime/fp16/fused_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.plan.rows import BACKWARD, MICRO, STEP, TRAINING, Amount, Phase, Row, pinned, row
from harness.plan.settings import Settings
from harness.plan.shards import Shards
from harness.plan.zero3 import master_and_states, stage3

_WHOLE = ("gradients_whole", "gradients before they are reduced")
_GRADIENT = ("gradient_largest", "largest gradient before it is reduced")
_BUFFER = ("largest", "buffer for the largest gradient")


def state_rows(s: Settings, z: Shards) -> list[Row]:
    """Rows of one rank, without activations. The rank is the one that owns most gradients."""
    stages = {0: _stage0, 1: _stage12, 2: _stage12, 3: stage3}
    return [row for row in stages[s.stage](s, z) if row.bytes]


def _kept(s: Settings) -> tuple[Phase, ...]:
    """When gradients are there that the next micro-batch adds to: in its forward pass too."""
    return MICRO if s.accumulation > 1 else BACKWARD


def _stage0(s: Settings, z: Shards) -> Iterator[Row]:
    b, p = s.param_bytes, z.total
    yield row("gpu", ("parameters", "parameters"), Amount(b, p, "P"), "model dtype")
    yield row("gpu", ("gradients", "gradients"), Amount(b, p, "P"), "torch .grad", _kept(s) + STEP)
    if s.mixed:
        yield row("gpu", ("master", "fp32 master weights"), Amount(4, p, "P"), "f16 fp32_groups_flat")
        # 4 bytes cast tensor by tensor, 4 flattened
        yield row("gpu", ("temporary", "fp32 gradients in the step"), Amount(8, p, "P"), "f16 step", STEP)
    states = Amount(4 * s.num_states, p, "P")
    yield row("gpu", ("states", "optimizer states, from the first step on"), states, "torch optimizer", TRAINING)
    bucket = Amount(s.comm_bytes, min(s.reduce_bucket, p), "min(bucket, P)")
    source = "runtime/engine.py buffered_allreduce_fallback"
    yield row("gpu", ("bucket", "all-reduce bucket"), bucket, source, STEP)


def _stage12(s: Settings, z: Shards) -> Iterator[Row]:
    yield row("gpu", ("parameters", "parameters"), Amount(s.param_bytes, z.flat, "P"), "s12 bit16_groups_flat")
    if s.bf16_optimizer:
        yield from _bf16_optimizer(s, z)
        return
    yield from _gradients12(s, z)
    yield from _optimizer12(s, z) if s.optimizer_at == "none" else _optimizer12_on_cpu(s, z)


def _gradients12(s: Settings, z: Shards) -> Iterator[Row]:
    g, b = s.grad_bytes, s.param_bytes
    if s.stage == 1:
        yield row("gpu", _WHOLE, Amount(b, z.total, "P"), "torch .grad", _kept(s))
    else:
        yield row("gpu", _GRADIENT, Amount(b, z.largest, "largest parameter"), "torch .grad", BACKWARD)
    kept = Amount(g, z.part, "P / N") if g != b else Amount(g, max(z.own), "parameters that touch this partition")
    if s.optimizer_at == "none":
        what, phases = ("gradients", "gradients of this rank's partition"), STEP if s.stage == 1 else _kept(s) + STEP
        yield row("gpu", what, kept, "s12 averaged_gradients", phases)
    elif g != b:
        what = ("gradients", "gradients of this rank's partition, fp32")
        yield row("gpu", what, kept, "s12 get_gradient_for_cpu_offload", _kept(s) + STEP)
    if s.contiguous_gradients or s.optimizer_at != "none":
        bucket = Amount(s.comm_bytes * (2 if s.overlap else 1), s.reduce_bucket, "reduce_bucket_size")
        yield row("gpu", ("bucket", "gradient bucket"), bucket, "s12 setup_buckets", BACKWARD)


def _optimizer12(s: Settings, z: Shards) -> Iterator[Row]:
    yield from master_and_states(s, z, "s12 single_partition_of_fp32_groups")
    cast, flat = Amount(s.master_bytes, z.part, "P / N"), Amount(s.grad_bytes, z.part, "P / N")
    yield row("gpu", ("temporary", "gradient of the step, as wide as the master"), cast, "s12 step", STEP)
    if s.grad_bytes != s.master_bytes:
        yield row("gpu", ("temporary", "flat gradient before its cast"), flat, "s12 step", STEP)


def _optimizer12_on_cpu(s: Settings, z: Shards) -> Iterator[Row]:
    b = s.param_bytes
    yield from master_and_states(s, z, "s12 single_partition_of_fp32_groups", "host")
    what = ("master_gradients", "gradients of the master weights")
    yield pinned(what, Amount(s.master_bytes, z.part, "P / N"), "s12 initialize_optimizer_states")
    what = ("staging", "updated parameters on their way to the device")
    yield pinned(what, Amount(b, z.part, "P / N"), "s12 param_buffer_of_bit16_for_cpu_offload_groups")
    largest = Amount(b, z.largest, "largest parameter")
    yield pinned(_BUFFER, largest, "s12 temp_grad_buffer_for_cpu_offload")
    yield row("gpu", _BUFFER, largest, "s12 temp_grad_buffer_for_gpu_offload")
    if s.stage == 2 and s.accumulation > 1 and s.grad_bytes == b and s.master_bytes == 4:
        own = Amount(b, max(z.own), "parameters that touch this partition")
        what = ("accumulated", "gradients between micro-batches")
        yield pinned(what, own, "s12 accumulated_grads_in_cpu", phases=TRAINING)


def _bf16_optimizer(s: Settings, z: Shards) -> Iterator[Row]:
    """Stage 1 with fp32 accumulation: gradients are not sharded at all. bf = deepspeed/runtime/bf16_optimizer.py."""
    what = ("gradients", "fp32 gradients, whole on every rank")
    yield row("gpu", what, Amount(4, z.flat, "P"), "bf fp32_groups_gradients_flat")
    whole = Amount(s.param_bytes, z.total, "P")
    yield row("gpu", ("gradients_whole", "16-bit gradients"), whole, "torch .grad", _kept(s))
    yield from master_and_states(s, z, "bf fp32_groups_flat_partition")
