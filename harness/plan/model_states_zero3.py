"""Model states of ZeRO-3 as rows, with the optimizer and the parameters on the device, on the CPU or on NVMe.

Stages 0 to 2 are in `harness.plan.model_states`. s3 = deepspeed/runtime/zero/stage3.py, swap = deepspeed/runtime/swap_tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.plan.memory_items import (
    BACKWARD,
    MICRO_BATCH,
    SAVE,
    STEP,
    TRAINING,
    ElementBytes,
    MemoryItem,
    Tier,
    memory_item,
    pinned_item,
)
from harness.plan.plan_settings import PlanSettings
from harness.plan.zero_partitions import ZeroPartitions

_SHARD_SOURCE = "s3 lp_param_contiguous_pin_buffer"
_SWAPPER_SOURCE = "swap/partitioned_param_swapper.py"


def stage3_items(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    """All rows of one rank."""
    yield from _parameters(s, z)
    yield from _gradients(s, z)
    yield from _gathered_parameters(s, z)
    yield from _buckets(s, z)
    yield from _optimizer(s, z)


def _parameters(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    b, shard = s.param_bytes, ElementBytes(s.param_bytes, z.partition_size, "P / N")
    if s.param_device == "none":
        yield memory_item("gpu", ("parameters", "parameters, this rank's shard"), shard, "s3 lp_param_buffer")
    elif s.param_device == "cpu":
        yield pinned_item(("parameters", "parameters, the shards"), shard, _SHARD_SOURCE)
    else:
        buffers = ElementBytes(b * s.parameter_buffers, _align_for_aio(s.parameter_buffer_size), "buffer_size")
        yield memory_item("host", ("swap", "parameter swap buffers"), buffers, _SWAPPER_SOURCE)
        whole = ElementBytes(b, z.undivided_sub_group, "largest sub-group, whole")
        source = "s3 _create_fp16_partitions_with_defragmentation"
        yield memory_item("host", ("swap", "parameter write-back buffer, not divided by N"), whole, source)
        kept = ElementBytes(b, min(s.max_in_cpu, z.partition_size), "min(max_in_cpu, P / N)")
        yield pinned_item(("parameters", "parameters kept in host memory"), kept, _SHARD_SOURCE)
        small = z.partition_size - z.nvme_parameters
        if small and s.max_in_cpu < z.partition_size:
            what = ("parameters", "parameters too small to swap")
            yield pinned_item(
                what, ElementBytes(b, small, "shards under 1 MiB"), "zero/partition_parameters.py _partition_param"
            )
        on_disk = ElementBytes(b, z.nvme_parameters, "P / N, shards of 1 MiB and more")
        yield memory_item("nvme", ("parameters", "parameters"), on_disk, _SWAPPER_SOURCE)


def _gradients(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    what, source = ("gradients", "gradients, this rank's shard"), "s3 grad_partitions_flat_buffer"
    shard = ElementBytes(s.grad_bytes, z.partition_size, "P / N")
    yield memory_item("gpu", what, shard, source) if s.optimizer_device == "none" else pinned_item(what, shard, source)


def _gathered_parameters(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    """What is live at the turn from forward to backward: decided by the reuse distance; max_live_parameters limits only
    what is gathered ahead.
    """
    ahead = (
        min(s.prefetch_bucket_size + z.largest_parameter_in_layer, s.max_live_parameters)
        if s.prefetch_bucket_size
        else 0
    )
    live = min(z.total, z.kept_gathered + z.largest_module + ahead)
    kept = "kept layers" if s.leaf_decoder_layers else "reuse distance / 2"
    amount = ElementBytes(s.param_bytes, live, f"min(P, {kept} + largest module + prefetch)")
    source = "zero/partitioned_param_coordinator.py __params_to_release"
    yield memory_item("gpu", ("gathered", "parameters gathered at once"), amount, source, MICRO_BATCH)
    if s.hpz_partition_size > 1:
        second = ElementBytes(s.param_bytes, z.hpz_partition, f"P / {s.hpz_partition_size}")
        what, source = (
            ("secondary", "second shard of the parameters (ZeRO++ hpZ)"),
            "zero/partition_parameters.py _partition_param_sec",
        )
        on_host = s.param_device != "none"
        yield (
            pinned_item(what, second, source, (), MICRO_BATCH)
            if on_host
            else memory_item("gpu", what, second, source, MICRO_BATCH)
        )
    small = ElementBytes(s.param_bytes, z.persistent_parameters, "those under stage3_param_persistence_threshold")
    source = "zero/parameter_offload.py mark_persistent_parameters"
    yield memory_item("gpu", ("persistent", "small parameters that stay gathered"), small, source, STEP + SAVE)


def _buckets(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    bucket = ElementBytes(s.comm_bytes, s.reduce_bucket_size, "reduce_bucket_size")
    yield memory_item("gpu", ("bucket", "gradient bucket"), bucket, "s3 ipg_buckets")
    copy = ElementBytes(s.comm_bytes, min(s.reduce_bucket_size, z.total), "min(bucket, P)")
    source = "runtime/comm/coalesced_collectives.py reduce_scatter_coalesced"
    yield memory_item("gpu", ("temporary", "copy of the bucket in reduce-scatter"), copy, source, BACKWARD)
    largest = ElementBytes(s.param_bytes, z.largest_parameter, "largest parameter")
    yield memory_item(
        "gpu", ("gradient_largest", "largest gradient before it is reduced"), largest, "torch .grad", BACKWARD
    )


def _optimizer(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    w, source = s.master_bytes, "s3 fp32_partitioned_groups_flat"
    if s.optimizer_device == "nvme":
        yield from _optimizer_on_nvme(s, z)
    elif s.optimizer_device == "cpu":
        yield from _optimizer_on_cpu(s, z, source)
    else:
        yield from master_and_state_items(s, z, source)
        both = ElementBytes(
            w + (s.grad_bytes if s.grad_bytes != w else 0), z.largest_sub_group, "largest sub-group / N"
        )
        yield memory_item("gpu", ("temporary", "gradient of one sub-group"), both, "s3 _prepare_sub_group", STEP)


def _optimizer_on_cpu(s: PlanSettings, z: ZeroPartitions, source: str) -> Iterator[MemoryItem]:
    """All of it, or with `ratio` the last sub-groups: the first stay on the device (Twin-Flow)."""
    first = int((1 - s.offload_ratio) * len(z.sub_groups))
    what, w = ("master_gradients", "gradients of the master weights"), s.master_bytes
    if first:
        near = sum(z.sub_groups[:first])
        yield from master_and_state_items(s, z, "s3 subgroup_to_device", num_elements=near)
        yield memory_item(
            "gpu", what, ElementBytes(w, near, "sub-groups on the device"), "s3 initialize_optimizer_states"
        )
    yield from _optimizer_in_host_memory(s, z, source, z.sub_groups[first:])


def _optimizer_in_host_memory(
    s: PlanSettings, z: ZeroPartitions, source: str, groups: tuple[int, ...]
) -> Iterator[MemoryItem]:
    """Sub-groups that are stepped by the CPU and stay in host memory."""
    yield from master_and_state_items(s, z, source, "host", sum(groups))
    w = s.master_bytes
    if s.optimizer_device == "cpu" and not s.separate_offload_grads:
        what, largest = ("master_gradients", "fp32 gradients of the sub-group that is stepped"), max(groups, default=0)
        if s.grad_bytes != w:
            yield memory_item(
                "host",
                what,
                ElementBytes(w, largest, "largest sub-group / N"),
                "harness/runtime/patches/cpu_offload_single_grad.py",
            )
        return
    what = ("master_gradients", "gradients of the master weights")
    yield pinned_item(what, ElementBytes(w, sum(groups), "P / N"), "s3 initialize_optimizer_states", groups)


def _optimizer_on_nvme(s: PlanSettings, z: ZeroPartitions) -> Iterator[MemoryItem]:
    w, o = s.master_bytes, s.state_bytes * s.num_states
    buffers = ElementBytes(s.optimizer_buffers * w, _align_for_aio(z.largest_sub_group), "largest sub-group / N")
    yield memory_item("host", ("swap", "optimizer swap buffers"), buffers, "swap/utils.py SwapBufferManager")
    what = ("states", "master weights and optimizer states")
    blocks = ElementBytes(w + o, sum(map(_align_for_aio, z.nvme_sub_groups)), "P / N")
    yield memory_item("nvme", what, blocks, "swap/optimizer_utils.py")
    kept = tuple(share for share in z.sub_groups if share not in z.nvme_sub_groups)
    if kept:
        yield from _optimizer_in_host_memory(s, z, "s3 _swappable_optimizer_subgroup", kept)
    if s.keeps_first_step_states and (s.pipeline_read or s.pipeline_write):
        what = ("states", "optimizer states of the first step, until the second reads them")
        source = "swap/pipelined_optimizer_swapper.py _complete_swap_out"
        yield memory_item("host", what, ElementBytes(o, sum(z.nvme_sub_groups), "P / N"), source, TRAINING)
    if not s.separate_offload_grads:
        return
    what = ("gradients", "gradients of the step")
    yield memory_item(
        "nvme", what, ElementBytes(w, z.nvme_gradients, "P / N"), "swap/optimizer_utils.py swap_out_gradients"
    )
    what = ("small_gradients", "gradients too small to swap")
    small = ElementBytes(w, sum(z.nvme_sub_groups) - z.nvme_gradients, "shards under 1 MiB")
    yield memory_item("host", what, small, "swap/optimizer_utils.py unswapped_gradients", BACKWARD + STEP)


def master_and_state_items(
    s: PlanSettings, z: ZeroPartitions, source: str, tier: Tier = "gpu", num_elements: int | None = None
) -> Iterator[MemoryItem]:
    """Master weights and optimizer states of one rank, at every stage that shards them; `part`: of so many elements."""
    count = z.partition_size if num_elements is None else num_elements
    w, o = s.master_bytes, s.state_bytes * s.num_states
    name = (
        "second copy of the weights" if not s.mixed_precision else "fp32 master weights" if w == 4 else "master weights"
    )
    master = ElementBytes(w, count, "P / N")
    locked = tier == "host" and s.stage < 3  # stage 3 leaves them pageable
    yield (
        pinned_item(("master", name), master, source) if locked else memory_item(tier, ("master", name), master, source)
    )
    what = ("states", "optimizer states, from the first step on")
    yield memory_item(tier, what, ElementBytes(o, count, "P / N"), "exp_avg and exp_avg_sq, or the momentum", TRAINING)


def _align_for_aio(numel: int) -> int:
    """Swapped lengths are multiples of 1024 x aio.intra_op_parallelism (1) bytes, counted in elements of 4."""
    return -(-numel // 256) * 256
