# SPDX-License-Identifier: Apache-2.0
"""Memory items of single phases: building a model, writing and reading a checkpoint, exporting; and assumptions.

Model states are in `model_states` and `model_states_zero3`. s12 = deepspeed/runtime/zero/stage_1_and_2.py, s3 =
zero/stage3.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.activation_items import activation_items
from harness.plan.memory.checkpoint_memory import resume_items, save_items
from harness.plan.memory.memory_items import (
    ENGINE,
    MICRO_BATCH,
    PHASES,
    STEP,
    TRAINING,
    ElementBytes,
    MemoryItem,
    Phase,
    Tier,
    at_moments,
    keep_largest_moments,
    memory_item,
    pinned_item,
)
from harness.plan.memory.zero_partitions import ZeroPartitions
from harness.plan.settings.plan_settings import PlanSettings

CUDA_CONTEXT = 600_000_000
NCCL_BUFFERS = 700_000_000
GPU_PROCESS = 2_000_000_000
CPU_IMPORTS = 385 << 20
"""A process that has imported torch, transformers, DeepSpeed and the harness (benchmarks/process_memory.py)."""
CPU_ENGINE = 25 << 20
"""The share of gloo, compiled ops, the tokenizer and an engine, without a tensor (the same script)."""
CPU_TRAINING = 25 << 20
"""The share of the first step: threads of autograd, kernels, and their pages of the libraries (the same script)."""
CPU_EXPORT = 385 << 20
ALLOCATOR_SLACK = 0.08
EXPORT_SHARD = 2 << 30
_MAX_HEAP_BLOCK = 32 << 20
LOAD: tuple[Phase, ...] = ("load",)
EXPORT: tuple[Phase, ...] = ("export",)
_BUILD_SOURCE = "harness/runtime/models/model_builder.py build_model"


def transient_items(
    settings: PlanSettings, partitions: ZeroPartitions, gpu_memory: int | None = None
) -> Iterator[MemoryItem]:
    """Memory of build, save, resume and export on top of the states. `gpu_memory`: bytes of a GPU, where there is one
    and they are known.
    """
    yield from _load_items(settings, partitions, gpu_memory)
    yield from save_items(settings, partitions)
    yield from resume_items(settings, partitions)
    size = min(EXPORT_SHARD, settings.param_bytes * partitions.whole)
    formula, source = "min(2 GiB, P), one per host", "harness/runtime/export/safetensors_writer.py SHARD_BYTES"
    yield MemoryItem("host", "export", "one file of the exported folder", size, formula, source, EXPORT, shared=True)


def _load_items(settings: PlanSettings, partitions: ZeroPartitions, gpu_memory: int | None) -> Iterator[MemoryItem]:
    """Stages 0 to 2 and AutoTP build the whole model on every rank; stage 3 shards each built module."""
    if settings.stage < 3 or settings.tensor_parallel_size > 1:
        label = ("model", f"the whole model{' in fp32' if settings.built_bytes == 4 else ''}, built on every rank")
        built = ElementBytes(settings.built_bytes, partitions.whole - partitions.quantized.numel, "P")
        yield at_moments(memory_item("host", label, built, _BUILD_SOURCE, LOAD), "build")
        if settings.built_bytes > settings.param_bytes:
            cast = ElementBytes(settings.param_bytes, partitions.largest_parameter, "largest parameter")
            label, source = ("temporary", "a new parameter cast, beside fp32"), "runtime/engine.py bfloat16, half"
            yield at_moments(memory_item("host", label, cast, source, LOAD), "build")
    if settings.stage == 3:
        yield from _stage3_load_items(settings, partitions)
    elif settings.stage and not settings.uses_bf16_optimizer:
        yield from _flattened_load_items(settings, partitions, gpu_memory)
        if settings.optimizer_device == "none":
            zeros = ElementBytes(settings.master_bytes, partitions.partition_size, "P / N")
            label, source = ("temporary", "gradient that creates the states"), "s12 initialize_optimizer_states"
            yield at_moments(memory_item("gpu", label, zeros, source, LOAD), "engine")


def _flattened_load_items(
    settings: PlanSettings, partitions: ZeroPartitions, gpu_memory: int | None
) -> Iterator[MemoryItem]:
    """DeepSpeed flattens the weights on the GPU where it has room for a second copy, else in host memory."""
    weights = ElementBytes(settings.param_bytes, partitions.total, "P")
    label, source = ("temporary", "weights before they are flattened"), "s12 available_memory"
    room = 0 if gpu_memory is None else gpu_memory - CUDA_CONTEXT - NCCL_BUFFERS
    if room >= weights.bytes + settings.param_bytes * partitions.padded_total:
        yield at_moments(memory_item("gpu", label, weights, source, LOAD), "flatten")
        return
    both = ElementBytes(2 * settings.param_bytes, partitions.total, "P")
    yield at_moments(memory_item("host", label, both, source, LOAD), "flatten")


def _stage3_load_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """In the order of the moments: modules are built, shards joined, masters made, gradients and hooks."""
    yield at_moments(_built_module_item(settings, partitions), "build")
    shards = ElementBytes(settings.param_bytes, partitions.partition_size, "P / N")
    if settings.param_device == "none":
        label = ("temporary", "shards on their way through the host while they are joined")
        yield at_moments(memory_item("host", label, shards, "zero/utils.py defragment", LOAD), "flatten")
    elif settings.param_device == "cpu":
        label = ("cache", "first shards, kept by torch's cache of page-locked memory")
        yield pinned_item(label, shards, "s3 _create_fp16_partitions_with_defragmentation", phases=ENGINE)
    masters = ("temporary", "second copy of one sub-group's masters")
    copies = ElementBytes(settings.master_bytes, partitions.largest_sub_group, "largest sub-group / N")
    tier: Tier = "gpu" if settings.optimizer_device == "none" else "host"
    yield at_moments(memory_item(tier, masters, copies, "s3 _create_fp32_partitions", LOAD), "masters")
    if settings.optimizer_device != "none" and settings.pin_memory:
        label = ("temporary", "gradients before they are page-locked")
        gradients = ElementBytes(settings.grad_bytes, partitions.partition_size, "P / N")
        yield at_moments(memory_item("host", label, gradients, "s3 _setup_for_real_optimizer", LOAD), "engine")
    label, largest_numel, name = (
        ("temporary", "largest parameter, gathered for its hook"),
        partitions.largest_gradient,
        "largest parameter",
    )
    if settings.param_device != "none":  # and this rank's shard on its way there
        largest_numel, name = largest_numel + -(-largest_numel // settings.zero_world_size), f"{name} x (1 + 1 / N)"
    largest = ElementBytes(settings.param_bytes, largest_numel, name)
    yield at_moments(memory_item("gpu", label, largest, "s3 create_reduce_and_remove_grad_hooks", LOAD), "engine")


def _built_module_item(settings: PlanSettings, partitions: ZeroPartitions) -> MemoryItem:
    """Weights that are read fill one gathered module after the other. A new one is made in fp32 on the GPU, and cast
    while that is still there and its shard is not yet; with AutoTP the host makes it.
    """
    label, source = ("temporary", "one module, gathered to be filled"), "zero/partition_parameters.py Init"
    module = ElementBytes(settings.param_bytes, partitions.largest_module, "largest module")
    if settings.built_bytes > settings.param_bytes and settings.tensor_parallel_size == 1:
        width, numel = settings.built_bytes + settings.param_bytes, partitions.largest_parameter
        on_gpu = settings.param_device == "none"
        shard = settings.param_bytes * -(-numel // settings.zero_world_size) if on_gpu else 0
        size, formula = width * numel - shard, f"{width} x largest parameter{', less its shard' if on_gpu else ''}"
        if size > module.bytes:
            text = "a new parameter in fp32, and its cast"
            return MemoryItem("gpu", "temporary", text, size, formula, "zero/partition_parameters.py wrapped_fn", LOAD)
    return memory_item("gpu", label, module, source, LOAD)


def cpu_process_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """Memory of a rank without a GPU beyond the engine's tensors, as resident pages: what ranks share counts for each.
    Gloo gathers into a copy; without offload the step's gradients are free by then, and the copy is no larger.
    """
    for label, size, phases in (
        ("process: Python, torch, transformers, DeepSpeed", CPU_IMPORTS, ENGINE),
        ("process: gloo, compiled ops, tokenizer, engine", CPU_ENGINE, ENGINE),
        ("process: threads and kernels of training", CPU_TRAINING, TRAINING),
        ("process: Python, torch, transformers, DeepSpeed", CPU_EXPORT, EXPORT),
    ):
        source = "benchmarks/process_memory.py"
        yield MemoryItem("host", "process", label, size, "measured", source, phases, assumed=True)
    if settings.stage in {1, 2} and settings.optimizer_device != "none" and settings.world_size > 1:
        copy = ("temporary", "gloo's copy of the updated parameters")
        updated = ElementBytes(settings.param_bytes, partitions.total, "P")
        yield memory_item("host", copy, updated, "runtime/utils.py all_gather_dp_groups", STEP)
    if settings.stage == 3 and settings.world_size > 1:
        copy = ("temporary", "gloo's copy of gathered parameters")
        gathered = ElementBytes(settings.param_bytes, partitions.largest_module, "largest module or layer")
        yield memory_item("host", copy, gathered, "gloo all-gather, by what two ranks held", MICRO_BATCH)


def heap_items(
    model: ModelFacts, settings: PlanSettings, partitions: ZeroPartitions, items: Sequence[MemoryItem]
) -> Iterator[MemoryItem]:
    """Blocks of a micro-batch that glibc's heap keeps after they are freed, on the CPU accelerator.

    Blocks of up to 32 MiB (DEFAULT_MMAP_THRESHOLD_MAX, which the threshold reaches with the first freed block of that
    size) come from the heap. It shrinks at its end alone, so that blocks of other sizes leave gaps. Measured, the gaps
    grow to the blocks that a micro-batch allocates, recomputed ones included; with MALLOC_MMAP_THRESHOLD_=1048576 there
    are no gaps (benchmarks/process_memory.py).
    """
    largest = settings.param_bytes * partitions.largest_parameter
    hidden_bytes = settings.tokens_per_micro_batch * model.hidden * (2 if settings.mixed_precision else 4)
    chunk = min(settings.tokens_per_micro_batch, settings.loss_chunk_size or settings.tokens_per_micro_batch)
    block_bytes = {
        "activations": hidden_bytes,
        "recompute": hidden_bytes,
        "logits": 4 * model.vocab * chunk,
        "gathered": largest,
        "gradient_largest": largest,
    }
    live, allocated = (
        {
            phase: sum(
                item.bytes
                for item in candidates
                if phase in item.phases and block_bytes.get(item.kind, _MAX_HEAP_BLOCK + 1) <= _MAX_HEAP_BLOCK
            )
            for phase in TRAINING
        }
        for candidates in map(keep_largest_moments, (items, _without_checkpointing(model, settings, items)))
    )
    for phase in TRAINING:
        kept = max(live.values()) - live[phase] + max(allocated.values())
        label, formula = "freed blocks that malloc keeps", "those of a micro-batch that are no longer in use"
        source = "glibc malloc.c DEFAULT_MMAP_THRESHOLD_MAX"
        yield MemoryItem("host", "heap", label, kept, formula, source, (phase,), assumed=True)


def _without_checkpointing(
    model: ModelFacts, settings: PlanSettings, items: Sequence[MemoryItem]
) -> Sequence[MemoryItem]:
    """The items of a micro-batch that keeps what checkpointing computes again: all that it allocates."""
    if not settings.checkpointing:
        return items
    kinds = {"activations", "recompute", "logits"}
    whole = activation_items(model, replace(settings, checkpointing=False))
    return [*(item for item in items if item.kind not in kinds), *whole]


def held_item(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """The host runs ahead of the GPU: what it has released is free once the streams that read it are there. Up to
    three gathers are under way (`max_ongoing_fetch_events`); one is counted, the largest. No simulation has it.
    """
    if settings.stage == 3 and settings.zero_world_size > 1:
        size, formula = settings.param_bytes * partitions.largest_module, "largest module or layer"
        label, source = "released parameters that a stream still reads", "assumed: torch record_stream"
        yield MemoryItem("gpu", "held", label, size, formula, source, MICRO_BATCH, assumed=True)


def gpu_overhead_items(settings: PlanSettings, items: Iterable[MemoryItem], padding: int) -> list[MemoryItem]:
    """CUDA context, NCCL, allocator slack, the process; and the rounding of page-locked blocks."""
    context, during = "assumed: lazy kernel loading", PHASES[:-1]
    result = [
        MemoryItem("gpu", "context", "CUDA context", CUDA_CONTEXT, "0.6 GB", context, during, assumed=True),
        allocator_slack_item(items),
        MemoryItem(
            "host", "process", "process: Python, torch, CUDA", GPU_PROCESS, "2 GB", "assumed", PHASES, assumed=True
        ),
    ]
    if settings.world_size > 1:
        result.append(
            MemoryItem("gpu", "nccl", "NCCL buffers", NCCL_BUFFERS, "0.7 GB", "assumed", during, assumed=True)
        )
    if padding and settings.pin_memory and not settings.pins_natively:
        source = "torch CachingHostAllocator.h: powers of two"
        label = "rounding of page-locked blocks"
        result.append(MemoryItem("host", "rounding", label, padding, "next power of two", source, during))
    return result


def allocator_slack_item(items: Iterable[MemoryItem]) -> MemoryItem:
    """Memory that torch's caching allocator reserves beyond its tensors: a share of the tensors of the largest phase of
    training.
    """
    tensors = [item for item in items if item.tier == "gpu" and not item.assumed]
    peak = max(sum(item.bytes for item in tensors if phase in item.phases) for phase in TRAINING)
    formula = f"{ALLOCATOR_SLACK:.0%} of the largest phase"
    return MemoryItem(
        "gpu", "slack", "allocator slack", int(ALLOCATOR_SLACK * peak), formula, "assumed", PHASES[:-1], assumed=True
    )
