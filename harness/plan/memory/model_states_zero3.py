# SPDX-License-Identifier: Apache-2.0
"""Model states of ZeRO-3 as memory items, with optimizer and parameters on the device, on the CPU or on NVMe.

Stages 0 to 2 are in `harness.plan.memory.model_states`. s3 = deepspeed/runtime/zero/stage3.py, swap =
deepspeed/runtime/swap_tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from harness.facts.kept_copies import STATE_BYTES, count_overlapped
from harness.plan.memory.memory_items import (
    BACKWARD,
    MICRO_BATCH,
    OPTIMIZER,
    SAVE,
    STEP,
    TRAINING,
    ElementBytes,
    MemoryItem,
    Tier,
    at_moments,
    memory_item,
    pinned_item,
)
from harness.plan.memory.zero_partitions import ZeroPartitions, rounds_pinned_weights
from harness.plan.settings.plan_settings import PlanSettings

_SHARD_SOURCE = "s3 lp_param_contiguous_pin_buffer"
_SWAPPER_SOURCE = "swap/partitioned_param_swapper.py"


def stage3_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """All items of one rank."""
    yield from _parameter_items(settings, partitions)
    yield from (at_moments(item, "engine") for item in _gradient_items(settings, partitions))
    yield from _resident_parameter_items(settings, partitions)
    yield from _bucket_items(settings, partitions)
    yield from (_after_flattening(item) for item in _optimizer_items(settings, partitions))


def _after_flattening(item: MemoryItem) -> MemoryItem:
    """Gradients of the masters, and buffers of a swapper, are made last."""
    return at_moments(item, *(("masters", "engine") if item.kind == "master" else ("engine",)), *item.moments)


def _parameter_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    param_bytes, shard = settings.param_bytes, ElementBytes(settings.param_bytes, partitions.partition_size, "P / N")
    if settings.param_device == "none":
        yield memory_item("gpu", ("parameters", "parameters, this rank's shard"), shard, "s3 lp_param_buffer")
        return
    if settings.pins_natively:
        # Each shard is a view of its block, which stays when `ds_tensor.data` becomes a part of the flat buffer.
        blocks, source = ("unreleased", "pinned shards that nothing releases"), "utils/pin_memory.py _new_locked"
        yield memory_item("host", blocks, shard, source)
    if settings.param_device == "cpu":
        yield pinned_item(("parameters", "parameters, the shards"), shard, _SHARD_SOURCE)
    else:
        buffers = ElementBytes(
            param_bytes * settings.parameter_buffers, _align_for_aio(settings.parameter_buffer_size), "buffer_size"
        )
        yield memory_item("host", ("swap", "parameter swap buffers"), buffers, _SWAPPER_SOURCE)
        whole = ElementBytes(param_bytes, partitions.undivided_sub_group, "largest sub-group, whole")
        source = "s3 _create_fp16_partitions_with_defragmentation"
        yield memory_item("host", ("swap", "parameter write-back buffer, not divided by N"), whole, source)
        in_memory = ElementBytes(
            param_bytes, min(settings.max_in_cpu, partitions.partition_size), "min(max_in_cpu, P / N)"
        )
        yield pinned_item(("parameters", "parameters kept in host memory"), in_memory, _SHARD_SOURCE)
        small = partitions.partition_size + partitions.frozen_shard - partitions.nvme_parameters
        if small and settings.max_in_cpu < partitions.partition_size:
            label = ("parameters", "parameters too small to swap")
            yield pinned_item(
                label,
                ElementBytes(param_bytes, small, "shards under 1 MiB"),
                "zero/partition_parameters.py _partition_param",
            )
        on_disk = ElementBytes(param_bytes, partitions.nvme_parameters, "P / N, shards of 1 MiB and more")
        yield memory_item("nvme", ("parameters", "parameters"), on_disk, _SWAPPER_SOURCE)


def _gradient_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    label, source = ("gradients", "gradients, this rank's shard"), "s3 grad_partitions_flat_buffer"
    shard = ElementBytes(settings.grad_bytes, partitions.partition_size, "P / N")
    yield (
        memory_item("gpu", label, shard, source)
        if settings.optimizer_device == "none"
        else pinned_item(label, shard, source)
    )


def _resident_parameter_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """The second shard of ZeRO++, and parameters that stay gathered; all others are in `gathered_items`."""
    if settings.hpz_partition_size > 1:
        second = ElementBytes(settings.param_bytes, partitions.hpz_partition, f"P / {settings.hpz_partition_size}")
        label, source = (
            ("secondary", "second shard of the parameters (ZeRO++ hpZ)"),
            "zero/partition_parameters.py _partition_param_sec",
        )
        on_host = settings.param_device != "none"
        yield (
            pinned_item(label, second, source, (), MICRO_BATCH)
            if on_host
            else memory_item("gpu", label, second, source, MICRO_BATCH)
        )
    small = ElementBytes(
        settings.param_bytes, partitions.persistent_parameters, "those under stage3_param_persistence_threshold"
    )
    source = "zero/parameter_offload.py mark_persistent_parameters"
    yield memory_item("gpu", ("persistent", "small parameters that stay gathered"), small, source, STEP + SAVE)


def _bucket_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    if settings.contiguous_gradients:  # one a format that autocast communicates in
        width = settings.comm_bytes + settings.autocast_bytes
        bucket = ElementBytes(width, settings.reduce_bucket_size, "reduce_bucket_size")
        yield at_moments(memory_item("gpu", ("bucket", "gradient bucket"), bucket, "s3 ipg_buckets"), "engine")
    else:
        waiting = ElementBytes(
            settings.param_bytes, min(settings.reduce_bucket_size, partitions.total), "min(bucket, P)"
        )
        label = ("gradients_whole", "gradients that wait for one reduction")
        yield memory_item("gpu", label, waiting, "s3 __add_grad_to_ipg_bucket", BACKWARD)
    yield from _reduced_gradient_items(settings, partitions)


def _reduced_gradient_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """Gradients before they are reduced, and the copies of the bucket that a reduce-scatter makes. A leaf module is
    reduced after its backward pass, and its first gradient may find a bucket that is full. A parameter larger than the
    bucket is reduced alone, once the next one has its gradient.
    """
    bucket = min(settings.reduce_bucket_size, partitions.total)
    source = "s3 reduce_leaf_module_grads" if partitions.leaf_layer else "s3 reduce_partition_and_remove_grads"
    if settings.mixed_precision:
        head = ElementBytes(settings.param_bytes, partitions.head_gradient, "head")
        label = ("gradient_largest", "gradient of the head before it is reduced")
        yield at_moments(memory_item("gpu", label, head, source, BACKWARD), "loss gradient")
    label, largest = ("gradient_largest", "largest gradient before it is reduced"), partitions.largest_gradient
    if partitions.leaf_layer:  # others leave before the gradients of a layer's activations are largest
        in_layer = ElementBytes(settings.param_bytes, partitions.largest_layer_gradient, "largest of a layer")
        yield at_moments(memory_item("gpu", label, in_layer, source, BACKWARD), "backward layer")
    if partitions.leaf_layer > largest:
        amount = ElementBytes(settings.param_bytes, partitions.leaf_layer, "largest layer")
    else:
        amount = ElementBytes(settings.param_bytes, largest, "largest parameter")
    yield at_moments(memory_item("gpu", label, amount, source, BACKWARD), "layer gradients")
    for each in _reduction_copies(settings, bucket, partitions.largest_gradient):
        yield at_moments(each, "layer gradients")


def _reduction_copies(settings: PlanSettings, bucket: int, largest: int) -> list[MemoryItem]:
    """Of the bucket: in the format that ranks reduce, where it differs, and for the reduce-scatter. A larger parameter
    alone has the first of them.
    """
    label = ("temporary", "gradients in the format that ranks reduce")
    casts = settings.comm_bytes != settings.param_bytes
    if casts and largest > 2 * bucket:
        alone = ElementBytes(settings.comm_bytes, largest, "largest parameter")
        return [memory_item("gpu", label, alone, "s3 __avg_scatter_grads", BACKWARD)]
    copy = ElementBytes(settings.comm_bytes, bucket, "min(bucket, P)")
    cast = [memory_item("gpu", label, copy, "s3 __avg_scatter_grads", BACKWARD)] if casts else []
    label, source = ("temporary", "copy of the bucket in reduce-scatter"), "runtime/comm/coalesced_collectives.py"
    return [*cast, memory_item("gpu", label, copy, source, BACKWARD)]


def _optimizer_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    master_bytes, source = settings.master_bytes, "s3 fp32_partitioned_groups_flat"
    if settings.steps_in_one_pass and settings.optimizer_device != "none" and settings.param_device == "none":
        label = ("outgoing", "updated parameters on their way to the device")
        buffers = ElementBytes(settings.param_bytes, partitions.largest_sub_group, "largest sub-group / N")
        for _ in partitions.sub_groups[:2]:
            yield pinned_item(label, buffers, "harness/patches/one_pass_adam.py")
    if settings.optimizer_device == "nvme":
        yield from _nvme_optimizer_items(settings, partitions)
    elif settings.optimizer_device == "cpu":
        yield from _cpu_optimizer_items(settings, partitions, source)
    else:
        yield from master_and_state_items(settings, partitions, source)
        both = ElementBytes(
            master_bytes + (settings.grad_bytes if settings.grad_bytes != master_bytes else 0),
            partitions.largest_sub_group,
            "largest sub-group / N",
        )
        row = memory_item("gpu", ("temporary", "gradient of one sub-group"), both, "s3 _prepare_sub_group", STEP)
        yield at_moments(row, "update")
        largest = ElementBytes(8, -(-partitions.largest_gradient // settings.zero_world_size), "largest parameter / N")
        label = ("temporary", "gradient in fp64, for its norm")
        yield at_moments(memory_item("gpu", label, largest, "s3 get_grad_norm_direct", STEP), "norm")


def _cpu_optimizer_items(settings: PlanSettings, partitions: ZeroPartitions, source: str) -> Iterator[MemoryItem]:
    """The whole optimizer, or with `ratio` the last sub-groups: the first stay on the device (Twin-Flow)."""
    first = int((1 - settings.offload_ratio) * len(partitions.sub_groups))
    label, master_bytes = ("master_gradients", "gradients of the master weights"), settings.master_bytes
    if first:
        on_device = sum(partitions.sub_groups[:first])
        yield from master_and_state_items(settings, partitions, "s3 subgroup_to_device", num_elements=on_device)
        amount = ElementBytes(master_bytes, on_device, "sub-groups on the device")
        yield memory_item("gpu", label, amount, "s3 initialize_optimizer_states")
    yield from _host_optimizer_items(settings, partitions, source, partitions.sub_groups[first:])
    is_rounded = rounds_pinned_weights(settings)
    early = count_overlapped(partitions.sub_groups[first:], settings.overlap_step_gib, is_rounded=is_rounded)
    if early:
        groups, source = partitions.sub_groups[-early:], "harness/patches/overlapped_step.py"
        label = ("temporary", "new masters and states of sub-groups that are stepped beside the backward pass")
        yield memory_item("host", label, ElementBytes(STATE_BYTES, sum(groups), "sub-groups / N"), source, TRAINING)
        label = ("temporary", "their new weights")
        new = ElementBytes(settings.param_bytes, sum(groups), "sub-groups / N")
        is_pinned = settings.param_device == "none"
        yield pinned_item(label, new, source, groups) if is_pinned else memory_item("host", label, new, source)


def _host_optimizer_items(
    settings: PlanSettings, partitions: ZeroPartitions, source: str, groups: tuple[int, ...]
) -> Iterator[MemoryItem]:
    """Sub-groups that the CPU steps and that stay in host memory."""
    yield from master_and_state_items(settings, partitions, source, "host", sum(groups))
    master_bytes = settings.master_bytes
    if settings.optimizer_device == "cpu" and not settings.separate_offload_grads:
        label, largest = ("master_gradients", "fp32 gradients of the sub-group that is stepped"), max(groups, default=0)
        if settings.grad_bytes != master_bytes:
            amount = ElementBytes(master_bytes, largest, "largest sub-group / N")
            yield memory_item("host", label, amount, "harness/patches/cpu_offload_single_grad.py")
        return
    label = ("master_gradients", "gradients of the master weights")
    yield pinned_item(label, ElementBytes(master_bytes, sum(groups), "P / N"), "s3 initialize_optimizer_states", groups)


def _first_states_item(settings: PlanSettings, partitions: ZeroPartitions, state_bytes: int) -> MemoryItem:
    """The first step, or a resume, makes the states of a sub-group in memory of their own; with `pipeline_write` those
    of the one before are still written. Simulated: `harness simulate`.
    """
    groups = [*partitions.nvme_sub_groups, 0]
    pipelined = settings.pipeline_read or settings.pipeline_write
    pairs = [sum(pair) for pair in itertools.pairwise(groups)] if pipelined else groups
    amount = ElementBytes(state_bytes, max(pairs, default=0), f"{'two sub-groups' if pipelined else 'sub-group'} / N")
    label = ("first_states", "states that the first step or a resume makes, until they are written")
    return memory_item("host", label, amount, "ops/adam/cpu_adam.py step", (*STEP, "resume"))


def _nvme_optimizer_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    master_bytes, state_bytes = settings.master_bytes, settings.state_bytes * settings.num_states
    buffers = ElementBytes(
        settings.optimizer_buffers * master_bytes, _align_for_aio(partitions.largest_sub_group), "largest sub-group / N"
    )
    yield memory_item("host", ("swap", "optimizer swap buffers"), buffers, "swap/utils.py SwapBufferManager")
    yield step_item(settings, max(partitions.nvme_sub_groups, default=0), "host")
    label = ("states", "master weights and optimizer states")
    blocks = ElementBytes(master_bytes + state_bytes, sum(map(_align_for_aio, partitions.nvme_sub_groups)), "P / N")
    yield memory_item("nvme", label, blocks, "swap/optimizer_utils.py")
    swapped = frozenset(partitions.nvme_sub_groups)
    unswapped = tuple(share for share in partitions.sub_groups if share not in swapped)
    if unswapped:
        yield from _host_optimizer_items(settings, partitions, "s3 _swappable_optimizer_subgroup", unswapped)
    if settings.keeps_first_step_states and (settings.pipeline_read or settings.pipeline_write):
        label = ("states", "optimizer states of the first step, until the second reads them")
        source = "swap/pipelined_optimizer_swapper.py _complete_swap_out"
        yield memory_item(
            "host", label, ElementBytes(state_bytes, sum(partitions.nvme_sub_groups), "P / N"), source, TRAINING
        )
    else:
        yield _first_states_item(settings, partitions, state_bytes)
    if not settings.separate_offload_grads:
        return
    label = ("gradients", "gradients of the step")
    yield memory_item(
        "nvme",
        label,
        ElementBytes(master_bytes, partitions.nvme_gradients, "P / N"),
        "swap/optimizer_utils.py swap_out_gradients",
    )
    label = ("small_gradients", "gradients too small to swap")
    small = ElementBytes(
        master_bytes, sum(partitions.nvme_sub_groups) - partitions.nvme_gradients, "shards under 1 MiB"
    )
    yield memory_item("host", label, small, "swap/optimizer_utils.py unswapped_gradients", BACKWARD + STEP)


def master_and_state_items(
    settings: PlanSettings, partitions: ZeroPartitions, source: str, tier: Tier = "gpu", num_elements: int | None = None
) -> Iterator[MemoryItem]:
    """Master weights and optimizer states of one rank, at every stage that shards them. `num_elements`: of so many
    elements, by default of the whole partition.
    """
    count = partitions.partition_size if num_elements is None else num_elements
    muon = partitions.muon_partition * count // max(1, partitions.partition_size)
    master_bytes, state_bytes = settings.master_bytes, settings.state_bytes * settings.num_states
    name = "fp32 master weights" if master_bytes == 4 else "master weights"
    name = name if settings.mixed_precision else "second copy of the weights"
    master = ElementBytes(master_bytes, count, "P / N")
    is_pinned = tier == "host" and settings.stage < 3  # stage 3 leaves them pageable
    yield (
        pinned_item(("master", name), master, source)
        if is_pinned
        else memory_item(tier, ("master", name), master, source)
    )
    yield step_item(settings, min(count, partitions.largest_sub_group) if settings.stage == 3 else count, tier)
    label = ("states", "optimizer states, from the first step on")
    source = "exp_avg and exp_avg_sq, or the momentum"
    phases = OPTIMIZER if tier == "gpu" else TRAINING  # on the host they are parts of the file that is read
    yield memory_item(tier, label, ElementBytes(state_bytes, count - muon, "P / N"), source, phases)
    if muon:
        momentum = ElementBytes(settings.momentum_bytes, muon, "P of matrices / N")
        label = ("states", "momentum of the matrices, by Muon")
        yield memory_item(tier, label, momentum, "runtime/zero/muon/muon_optimizer.py", phases)


def step_item(settings: PlanSettings, numel: int, tier: Tier) -> MemoryItem:
    """The square roots of the second states, of all that is stepped at once; on the CPU their quotients too."""
    roots = ElementBytes(settings.state_bytes * settings.step_temporaries[tier == "host"], numel, "elements of a step")
    row = memory_item(tier, ("roots", "square roots of Adam's states"), roots, "torch optim/adam.py", STEP)
    return at_moments(row, "update")


def _align_for_aio(numel: int) -> int:
    """Swapped lengths are multiples of 1024 x aio.intra_op_parallelism (1) bytes, counted in elements of 4."""
    return -(-numel // 256) * 256
