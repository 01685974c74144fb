# SPDX-License-Identifier: Apache-2.0
"""Memory of saves and resumes on top of the states: what is collected, copied, staged and read back."""

from __future__ import annotations

from collections.abc import Iterator

from harness.plan.memory.memory_items import (
    SAVE,
    TRAINING,
    ElementBytes,
    MemoryItem,
    Phase,
    at_moments,
    memory_item,
    pinned_item,
)
from harness.plan.memory.model_states import quantized_item
from harness.plan.memory.zero_partitions import ZeroPartitions
from harness.plan.settings.plan_settings import PlanSettings

SAVE_BLOCK_BYTES = 64 << 20
"""Of each of the two blocks of `harness/runtime/checkpoint/snapshot.py`."""
RESUME: tuple[Phase, ...] = ("resume",)


def save_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """The items of a save, in bytes of a rank or a host.

    Tensors on a GPU pass through the host one storage at a time; those on the host are written from there. A save in
    the background writes a copy, which stays for the next one.
    """
    yield from _collected_frozen_items(settings, partitions)
    if settings.copies_for_save:
        yield from _copy_items(settings, partitions)
        return
    if settings.stage in (1, 2) and settings.rank in (None, 0):
        largest = partitions.largest_parameter if partitions.frozen else 0
        num_elements = max(partitions.padded_total, largest)
        weights = ElementBytes(settings.param_bytes, num_elements, "P, one rank")
        label, source = ("save", "weights on their way to the file"), "torch.save of the flat weights"
        item = MemoryItem("host", *label, weights.bytes, str(weights), source, SAVE, shared=True)
        yield at_moments(item, "weights saved")
        quantized = quantized_item("host", ("save", "4-bit weights on their way to the file"), partitions, SAVE)
        yield at_moments(quantized._replace(shared=True), "weights saved")
    if settings.optimizer_device != "none":
        return
    master_bytes = settings.master_bytes
    amounts = {
        0: _largest_storage(settings, partitions),
        3: ElementBytes(master_bytes, partitions.largest_sub_group, "largest sub-group / N"),
    }
    amount = amounts.get(settings.stage, ElementBytes(master_bytes, partitions.partition_size, "P / N"))
    label, source = ("save", "one tensor on its way to the file"), "torch.save of the flat buffers"
    yield at_moments(memory_item("host", label, amount, source, SAVE), "states saved")


def _collected_frozen_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """From stage 2 on DeepSpeed collects all frozen weights in host memory, before they are written or copied."""
    label, source = ("save", "frozen weights, collected for the file"), "runtime/engine.py _get_param_fragment_func"
    if settings.stage == 2 and settings.rank in (None, 0):
        whole = ElementBytes(settings.param_bytes, partitions.unquantized_frozen, "P frozen, one rank")
        yield memory_item("host", label, whole, source, SAVE)._replace(shared=True)
    elif settings.stage == 3 and settings.param_device == "none":
        shard = ElementBytes(settings.param_bytes, partitions.frozen_shard, "P frozen / N")
        yield memory_item("host", label, shard, source, SAVE)


def _largest_storage(settings: PlanSettings, partitions: ZeroPartitions) -> ElementBytes:
    """Of the file of stage 0: the flat masters, or the largest of single tensors."""
    if settings.mixed_precision and settings.flattens_masters:
        states = ElementBytes(4, partitions.total, "P")
    else:
        states = ElementBytes(4, partitions.largest_gradient, "largest parameter")
    weight = ElementBytes(settings.param_bytes, partitions.largest_parameter, "largest parameter")
    return max(states, weight, key=lambda amount: amount.bytes)


def _copy_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """A rank's files, each storage once: the optimizer's shard, and below stage 3 on one rank of the job
    the weights. Stage 0 has one file. From the first save on.
    """
    source, widths = "harness/runtime/checkpoint/snapshot.py", settings.bytes_per_parameter
    label = ("save", "copy of masters and states for a save in the background")
    width = widths.master + widths.states
    if settings.stage == 0:
        states = ElementBytes(width, partitions.total, "P, one rank")
        yield _once_a_job(label, states, source)
    else:
        shard = ElementBytes(width, partitions.partition_size, "P / N")
        yield memory_item("host", label, shard, source, TRAINING)
    label = ("save", "copy of the weights for a save in the background")
    if settings.stage == 3:
        frozen = ElementBytes(settings.param_bytes, partitions.frozen_shard, "P frozen / N")
        yield memory_item("host", label, frozen, source, TRAINING)
    else:
        num_elements = partitions.padded_total if settings.stage else partitions.total
        num_elements += partitions.unquantized_frozen * (2 if settings.stage == 2 else 1)  # and those collected
        yield _once_a_job(label, ElementBytes(settings.param_bytes, num_elements, "P, one rank"), source)
        label = ("save", "copy of the 4-bit weights for a save in the background")
        yield quantized_item("host", label, partitions, TRAINING)._replace(shared=True)
    yield from _staging_items(settings, partitions, source)


def _staging_items(settings: PlanSettings, partitions: ZeroPartitions, source: str) -> Iterator[MemoryItem]:
    """Page-locked blocks through which a rank copies what its GPU holds. With the optimizer in host memory that is
    frozen shards at stage 3, else the weights, on the rank that writes them.
    """
    amount = ElementBytes(2, SAVE_BLOCK_BYTES, f"{SAVE_BLOCK_BYTES >> 20} MiB")
    label, blocks = ("staged", "page-locked blocks for a copy from the GPU"), (SAVE_BLOCK_BYTES // 2,) * 2
    item = pinned_item(label, amount, source, blocks, TRAINING)
    if settings.optimizer_device == "none" and settings.stage > 0:
        yield item
    elif settings.stage < 3:
        yield item._replace(shared=True)
    elif partitions.frozen_shard and settings.param_device == "none":
        yield item


def _once_a_job(label: tuple[str, str], amount: ElementBytes, source: str) -> MemoryItem:
    return MemoryItem("host", *label, amount.bytes, str(amount), source, TRAINING, shared=True)


def resume_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """Every rank reads the file of the weights, and then its optimizer file, each whole before it copies anything."""
    if settings.stage == 3:
        frozen = ElementBytes(settings.param_bytes, partitions.frozen_shard, "P frozen / N")
        label, source = ("resume", "frozen shards, read whole"), "runtime/engine.py _load_checkpoint"
        yield memory_item("host", label, frozen, source, RESUME)
    if settings.optimizer_device == "nvme":
        return
    if settings.stage in (1, 2):
        copies = 2 if settings.stage == 2 else 1  # of the frozen ones: among the weights, and by themselves
        weights = ElementBytes(settings.param_bytes, copies * partitions.unquantized_frozen + partitions.total, "P")
        label, source = ("resume", "the file of the weights, read whole"), "runtime/engine.py _load_checkpoint"
        yield at_moments(memory_item("host", label, weights, source, RESUME), "weights read")
        label = ("resume", "the 4-bit weights of that file")
        yield at_moments(quantized_item("host", label, partitions, RESUME), "weights read")
    if settings.stage == 0:
        yield from _resume_file_items(settings, partitions)
        return
    width = settings.master_bytes + settings.state_bytes * settings.num_states
    amount = ElementBytes(width, partitions.partition_size, "P / N")
    source = "runtime/engine.py _load_zero_checkpoint, counted"
    label = ("resume", "the rank's optimizer file, read whole")
    yield at_moments(memory_item("host", label, amount, source, RESUME), "states read")


def _resume_file_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """Stage 0 has one file, of the weights and the optimizer."""
    widths, source = settings.bytes_per_parameter, "runtime/engine.py _load_checkpoint"
    whole = ElementBytes(settings.param_bytes + widths.master + widths.states, partitions.total, "P")
    yield memory_item("host", ("resume", "the file of weights and optimizer, read whole"), whole, source, RESUME)
    frozen = ElementBytes(settings.param_bytes, partitions.unquantized_frozen, "P frozen")
    yield memory_item("host", ("resume", "the frozen weights of that file"), frozen, source, RESUME)
    yield quantized_item("host", ("resume", "the 4-bit weights of that file"), partitions, RESUME)
