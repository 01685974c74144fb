"""Model states of ZeRO-3 as rows, with the optimizer and the parameters on the device, on the CPU or on NVMe.

Stages 0 to 2 are in `harness.plan.states`. s3 = deepspeed/runtime/zero/stage3.py, swap = deepspeed/runtime/swap_tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.plan.rows import BACKWARD, MICRO, SAVE, STEP, TRAINING, Amount, Row, Tier, pinned, row
from harness.plan.settings import Settings
from harness.plan.shards import Shards

_SHARDS = "s3 lp_param_contiguous_pin_buffer"
_SWAPPER = "swap/partitioned_param_swapper.py"


def stage3(s: Settings, z: Shards) -> Iterator[Row]:
    """All rows of one rank."""
    yield from _parameters(s, z)
    yield from _gradients(s, z)
    yield from _gathered(s, z)
    yield from _buckets(s, z)
    yield from _optimizer(s, z)


def _parameters(s: Settings, z: Shards) -> Iterator[Row]:
    b, shard = s.param_bytes, Amount(s.param_bytes, z.part, "P / N")
    if s.parameters_at == "none":
        yield row("gpu", ("parameters", "parameters, this rank's shard"), shard, "s3 lp_param_buffer")
    elif s.parameters_at == "cpu":
        yield pinned(("parameters", "parameters, the shards"), shard, _SHARDS)
    else:
        buffers = Amount(b * s.parameter_buffers, _aligned(s.parameter_buffer_size), "buffer_size")
        yield row("host", ("swap", "parameter swap buffers"), buffers, _SWAPPER)
        whole = Amount(b, z.sub_group_full, "largest sub-group, whole")
        source = "s3 _create_fp16_partitions_with_defragmentation"
        yield row("host", ("swap", "parameter write-back buffer, not divided by N"), whole, source)
        kept = Amount(b, min(s.max_in_cpu, z.part), "min(max_in_cpu, P / N)")
        yield pinned(("parameters", "parameters kept in host memory"), kept, _SHARDS)
        small = z.part - z.parameters_on_disk
        if small and s.max_in_cpu < z.part:
            what = ("parameters", "parameters too small to swap")
            yield pinned(what, Amount(b, small, "shards under 1 MiB"), "zero/partition_parameters.py _partition_param")
        on_disk = Amount(b, z.parameters_on_disk, "P / N, shards of 1 MiB and more")
        yield row("nvme", ("parameters", "parameters"), on_disk, _SWAPPER)


def _gradients(s: Settings, z: Shards) -> Iterator[Row]:
    what, source = ("gradients", "gradients, this rank's shard"), "s3 grad_partitions_flat_buffer"
    shard = Amount(s.grad_bytes, z.part, "P / N")
    yield row("gpu", what, shard, source) if s.optimizer_at == "none" else pinned(what, shard, source)


def _gathered(s: Settings, z: Shards) -> Iterator[Row]:
    """What is live at the turn from forward to backward: decided by the reuse distance; max_live_parameters limits only
    what is gathered ahead.
    """
    ahead = min(s.prefetch + z.largest_in_layer, s.max_live) if s.prefetch else 0
    live = min(z.total, z.kept + z.largest_module + ahead)
    kept = "kept layers" if s.whole_layers else "reuse distance / 2"
    amount = Amount(s.param_bytes, live, f"min(P, {kept} + largest module + prefetch)")
    source = "zero/partitioned_param_coordinator.py __params_to_release"
    yield row("gpu", ("gathered", "parameters gathered at once"), amount, source, MICRO)
    if s.secondary > 1:
        second = Amount(s.param_bytes, z.secondary, f"P / {s.secondary}")
        what, source = (
            ("secondary", "second shard of the parameters (ZeRO++ hpZ)"),
            "zero/partition_parameters.py _partition_param_sec",
        )
        on_host = s.parameters_at != "none"
        yield pinned(what, second, source, (), MICRO) if on_host else row("gpu", what, second, source, MICRO)
    small = Amount(s.param_bytes, z.persistent, "those under stage3_param_persistence_threshold")
    source = "zero/parameter_offload.py mark_persistent_parameters"
    yield row("gpu", ("persistent", "small parameters that stay gathered"), small, source, STEP + SAVE)


def _buckets(s: Settings, z: Shards) -> Iterator[Row]:
    bucket = Amount(s.comm_bytes, s.reduce_bucket, "reduce_bucket_size")
    yield row("gpu", ("bucket", "gradient bucket"), bucket, "s3 ipg_buckets")
    copy = Amount(s.comm_bytes, min(s.reduce_bucket, z.total), "min(bucket, P)")
    source = "runtime/comm/coalesced_collectives.py reduce_scatter_coalesced"
    yield row("gpu", ("temporary", "copy of the bucket in reduce-scatter"), copy, source, BACKWARD)
    largest = Amount(s.param_bytes, z.largest, "largest parameter")
    yield row("gpu", ("gradient_largest", "largest gradient before it is reduced"), largest, "torch .grad", BACKWARD)


def _optimizer(s: Settings, z: Shards) -> Iterator[Row]:
    w, source = s.master_bytes, "s3 fp32_partitioned_groups_flat"
    if s.optimizer_at == "nvme":
        yield from _optimizer_on_nvme(s, z)
    elif s.optimizer_at == "cpu":
        yield from _optimizer_on_cpu(s, z, source)
    else:
        yield from master_and_states(s, z, source)
        both = Amount(w + (s.grad_bytes if s.grad_bytes != w else 0), z.sub_group, "largest sub-group / N")
        yield row("gpu", ("temporary", "gradient of one sub-group"), both, "s3 _prepare_sub_group", STEP)


def _optimizer_on_cpu(s: Settings, z: Shards, source: str) -> Iterator[Row]:
    """All of it, or with `ratio` the last sub-groups: the first stay on the device (Twin-Flow)."""
    first = int((1 - s.cpu_share) * len(z.sub_groups))
    what, w = ("master_gradients", "gradients of the master weights"), s.master_bytes
    if first:
        near = sum(z.sub_groups[:first])
        yield from master_and_states(s, z, "s3 subgroup_to_device", part=near)
        yield row("gpu", what, Amount(w, near, "sub-groups on the device"), "s3 initialize_optimizer_states")
    yield from _in_memory(s, z, source, z.sub_groups[first:])


def _in_memory(s: Settings, z: Shards, source: str, groups: tuple[int, ...]) -> Iterator[Row]:
    """Sub-groups that are stepped by the CPU and stay in host memory."""
    yield from master_and_states(s, z, source, "host", sum(groups))
    w = s.master_bytes
    if s.optimizer_at == "cpu" and not s.gradients_twice:
        what, largest = ("master_gradients", "fp32 gradients of the sub-group that is stepped"), max(groups, default=0)
        if s.grad_bytes != w:
            yield row("host", what, Amount(w, largest, "largest sub-group / N"), "harness/runtime/host_gradients.py")
        return
    what = ("master_gradients", "gradients of the master weights")
    yield pinned(what, Amount(w, sum(groups), "P / N"), "s3 initialize_optimizer_states", groups)


def _optimizer_on_nvme(s: Settings, z: Shards) -> Iterator[Row]:
    w, o = s.master_bytes, s.state_bytes * s.num_states
    buffers = Amount(s.optimizer_buffers * w, _aligned(z.sub_group), "largest sub-group / N")
    yield row("host", ("swap", "optimizer swap buffers"), buffers, "swap/utils.py SwapBufferManager")
    what = ("states", "master weights and optimizer states")
    blocks = Amount(w + o, sum(map(_aligned, z.on_disk)), "P / N")
    yield row("nvme", what, blocks, "swap/optimizer_utils.py")
    kept = tuple(share for share in z.sub_groups if share not in z.on_disk)
    if kept:
        yield from _in_memory(s, z, "s3 _swappable_optimizer_subgroup", kept)
    if s.states_kept and (s.pipeline_read or s.pipeline_write):
        what = ("states", "optimizer states of the first step, until the second reads them")
        source = "swap/pipelined_optimizer_swapper.py _complete_swap_out"
        yield row("host", what, Amount(o, sum(z.on_disk), "P / N"), source, TRAINING)
    if not s.gradients_twice:
        return
    what = ("gradients", "gradients of the step")
    yield row("nvme", what, Amount(w, z.swapped, "P / N"), "swap/optimizer_utils.py swap_out_gradients")
    what = ("small_gradients", "gradients too small to swap")
    small = Amount(w, sum(z.on_disk) - z.swapped, "shards under 1 MiB")
    yield row("host", what, small, "swap/optimizer_utils.py unswapped_gradients", BACKWARD + STEP)


def master_and_states(
    s: Settings, z: Shards, source: str, tier: Tier = "gpu", part: int | None = None
) -> Iterator[Row]:
    """Master weights and optimizer states of one rank, at every stage that shards them; `part`: of so many elements."""
    count = z.part if part is None else part
    w, o = s.master_bytes, s.state_bytes * s.num_states
    name = "second copy of the weights" if not s.mixed else "fp32 master weights" if w == 4 else "master weights"
    master = Amount(w, count, "P / N")
    locked = tier == "host" and s.stage < 3  # stage 3 leaves them pageable
    yield pinned(("master", name), master, source) if locked else row(tier, ("master", name), master, source)
    what = ("states", "optimizer states, from the first step on")
    yield row(tier, what, Amount(o, count, "P / N"), "exp_avg and exp_avg_sq, or the momentum", TRAINING)


def _aligned(numel: int) -> int:
    """Swapped lengths are multiples of 1024 x aio.intra_op_parallelism (1) bytes, counted in elements of 4."""
    return -(-numel // 256) * 256
