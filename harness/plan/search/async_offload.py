# SPDX-License-Identifier: Apache-2.0
"""ZenFlow and SuperOffload: an optimizer on the CPU that steps while the GPU computes. Memory as DeepSpeed 0.19.8
allocates it, and the part of the CPU step that nothing hides.

zf = deepspeed/runtime/zenflow, so = deepspeed/runtime/superoffload. Both are read here at stage 3 alone: SuperOffload
has no other, and below it ZenFlow scrambles the weights (ZR030). The items were read, not measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.memory_estimate import Capacity, Fit, MemoryEstimate, check_fit, estimate_memory
from harness.plan.memory.memory_items import (
    BACKWARD,
    STEP,
    TRAINING,
    ElementBytes,
    MemoryItem,
    memory_item,
    pinned_item,
    pinned_rounding_bytes,
)
from harness.plan.memory.transient_memory import GPU_PROCESS, gpu_overhead_items, held_item
from harness.plan.memory.zero_partitions import ZeroPartitions, partition_model
from harness.plan.search.alternatives import SMALL_SUB_GROUP, Alternative, title_of, with_offload
from harness.plan.settings.checkpointed_layers import recompute_shares
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.comm_volume import cpu_optimizer_bytes
from harness.plan.time.rates import CPU_STEP_BYTES, Rates
from harness.plan.time.step_time import StepTime, TimePart, bottleneck_of, estimate_step_time
from harness.plan.weights.optimizer_states import Optimizer
from harness.spec.run_spec import RunSpec

CPU_OPTIMIZER = "CPU optimizer"
"""The part of a step that both hide."""
_UNSCALE_BYTES = 8
"""Of `CPU_STEP_BYTES`: `grad.mul_` reads and writes each fp32 gradient, on the thread that trains."""
_COHERENT_LINK = 200e9
"""Bytes a second to the host, in one direction, from which SuperOffload pays: NVLink-C2C has 450, PCIe 5 has 64."""


@dataclass(frozen=True, slots=True)
class ZenFlow:
    """`zero_optimization.zenflow`, with DeepSpeed's defaults. The GPU steps the columns with the largest gradients in
    each micro-batch, the CPU everything once in `update_interval` micro-batches, which replaces the accumulation.
    `is_overlapped`: in a process of its own, during the next step. `is_offloaded`: the states of the GPU's share wait
    in host memory.
    """

    topk_ratio: float = 0.1
    is_overlapped: bool = False
    is_offloaded: bool = False

    @property
    def title(self) -> str:
        """As the tables call it."""
        return "ZenFlow" if self.is_overlapped else "ZenFlow without overlap"


@dataclass(frozen=True, slots=True)
class SuperOffload:
    """`offload_optimizer.super_offload`: a worker process steps each sub-group in the backward pass, once its gradients
    are there. `is_clipped`: gradients are clipped, so that the worker waits for their norm (so `_step_with_clipping`).
    """

    cores: float = 0.8
    is_clipped: bool = True

    @property
    def title(self) -> str:
        """As the tables call it."""
        return "SuperOffload, gradients clipped" if self.is_clipped else "SuperOffload"


AsyncOffload = ZenFlow | SuperOffload


def read_async_offload(settings: PlanSettings, zero: object, max_grad_norm: float) -> AsyncOffload | None:
    """The variant that a `zero_optimization` block wants at stage 3 with the optimizer on the CPU; None for neither."""
    if settings.stage != 3 or settings.optimizer_device != "cpu" or not isinstance(zero, Mapping):
        return None
    zenflow, offload = zero.get("zenflow"), zero.get("offload_optimizer")
    if isinstance(zenflow, Mapping):
        return ZenFlow(
            _number(zenflow, "topk_ratio", 0.1), zenflow.get("overlap_step") is True, zenflow.get("offload") is True
        )
    if isinstance(offload, Mapping) and offload.get("super_offload") is True:
        return SuperOffload(_number(offload, "cpuadam_cores_perc", 0.8), max_grad_norm > 0)
    return None


def _number(block: Mapping[str, Any], key: str, default: float) -> float:
    value = block.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def with_async_offload(
    memory: MemoryEstimate, time: StepTime | None, offload: AsyncOffload, model: ModelFacts, settings: PlanSettings
) -> tuple[MemoryEstimate, StepTime | None]:
    """Memory and time of a run with its optimizer on the CPU, with this in the place of the ordinary one."""
    partitions = partition_model(model, settings)
    items = [item for item in memory.items if not _is_replaced(item)]
    if isinstance(offload, ZenFlow):
        items += _zenflow_items(settings, partitions, offload)
    else:
        items += _super_offload_items(settings, partitions)
    items = [item for item in items if item.bytes]
    items += [*gpu_overhead_items(settings, items, pinned_rounding_bytes(items)), *held_item(settings, partitions)]
    changed = replace(memory, items=tuple(items), gathers_parameters=False)
    if time is None:
        return changed, None
    recomputed = recompute_shares(settings, model.num_layers).layers
    return changed, _with_exposed_step(time, offload, settings, len(partitions.sub_groups), recomputed)


def _is_replaced(item: MemoryItem) -> bool:
    """Items of the ordinary optimizer on the CPU, and those that follow from all others."""
    is_state = item.tier == "host" and item.kind in ("master", "master_gradients", "states", "outgoing")
    return is_state or item.assumed or item.kind == "rounding"


def _zenflow_items(settings: PlanSettings, partitions: ZeroPartitions, zenflow: ZenFlow) -> Iterator[MemoryItem]:
    """Overlapped: two buffers of gradients, two pairs of states, a second copy of the masters, all fp32."""
    shard, times = partitions.partition_size, 2 if zenflow.is_overlapped else 1
    master = ElementBytes(settings.master_bytes, shard, "P / N")
    yield memory_item("host", ("master", "fp32 master weights"), master, "s3 fp32_partitioned_groups_flat")
    gradients = ElementBytes(times * settings.master_bytes, shard, "P / N")
    label, states = ("master_gradients", "gradients of the master weights"), ElementBytes(4 * 2 * times, shard, "P / N")
    if zenflow.is_overlapped:
        source = "zf/engine_stage3.py initialize_optimizer_states: overlap_grad"
        yield memory_item("host", (label[0], "gradients of two steps"), gradients, source)
        yield memory_item(
            "host", ("staging", "updated weights of the last step"), master, "zf/zenflow_utils.py stale_param", TRAINING
        )
        source = "zf/zenflow_utils.py zenflow_optimizer_process"
        yield memory_item("host", ("states", "optimizer states, two of each"), states, source, TRAINING)
        yield _process_item(source)
    else:
        yield pinned_item(label, gradients, "s3 initialize_optimizer_states", partitions.sub_groups)
        source = "ops/adam/zenflow_cpu_adam.py"
        yield memory_item("host", ("states", "optimizer states, from the first step on"), states, source, TRAINING)
    yield from _selective_items(settings, partitions, zenflow)


def _selective_items(settings: PlanSettings, partitions: ZeroPartitions, zenflow: ZenFlow) -> Iterator[MemoryItem]:
    """The columns that the GPU steps: their states, gradients and a copy, in the format of the parameters."""
    chosen, source = int(zenflow.topk_ratio * partitions.partition_size), "ops/adam/zenflow_torch_adam.py"
    name = f"P / N x {zenflow.topk_ratio:g}"
    states = ElementBytes(2 * settings.param_bytes, chosen, name)
    label = ("states", "optimizer states of the columns that the GPU steps")
    if zenflow.is_offloaded:
        yield pinned_item(label, states, f"{source} exp_avg_cpu_data", phases=TRAINING)
    else:
        yield memory_item("gpu", label, states, source, TRAINING)
    copies = ElementBytes(2 * settings.param_bytes, chosen, name)
    label = ("temporary", "gradients and a copy of those columns")
    yield memory_item("gpu", label, copies, f"{source} selected_grad, temp_selected_param", BACKWARD + STEP)
    largest = ElementBytes(settings.param_bytes, partitions.largest_gradient, "largest parameter")
    source = "zero/stage3.py __add_grad_to_ipg_bucket"
    yield memory_item("gpu", ("temporary", "transposed gradient"), largest, source, BACKWARD)


def _super_offload_items(settings: PlanSettings, partitions: ZeroPartitions) -> Iterator[MemoryItem]:
    """Masters and gradients shared with a worker, which has the states and a buffer for one sub-group's gradients."""
    shard, groups = partitions.partition_size, partitions.sub_groups
    master = ElementBytes(settings.master_bytes, shard, "P / N")
    yield memory_item("host", ("master", "fp32 master weights"), master, "s3 fp32_partitioned_groups_flat")
    label = ("master_gradients", "gradients of the master weights")
    yield pinned_item(label, master, "s3 initialize_optimizer_states", groups)
    states = ElementBytes(4 * 2, shard, "P / N")
    source = "ops/adam/cpu_adam.py step_subgroup"
    yield memory_item("host", ("states", "optimizer states, from the first step on"), states, source, TRAINING)
    buffer = ElementBytes(4, max(groups, default=0), "largest sub-group / N")
    source = "so/superoffload_utils.py _allocate_worker_grad_buffer"
    yield pinned_item(("bucket", "gradients of one sub-group, in the worker"), buffer, source)
    yield _process_item("so/superoffload_utils.py SuperOffloadCPUOptimizer")


def _process_item(source: str) -> MemoryItem:
    label = "the optimizer's process: Python, torch"
    return MemoryItem("host", "process", label, GPU_PROCESS // 2, "1 GB", source, assumed=True)


def zenflow_exposed_seconds(zenflow: ZenFlow, step: float, compute: float) -> float:
    """Seconds of the CPU step that the GPU waits for, of `step`; `compute`: forward and backward of all micro-batches.

    Overlapped, the step runs during the next one, on the cores that are not reserved; what is on the training thread
    stays: unscaling the gradients.
    """
    if not zenflow.is_overlapped:
        return step
    unscale = step * _UNSCALE_BYTES / CPU_STEP_BYTES
    return min(step, unscale + max(0.0, step - unscale - compute))


def super_offload_exposed_seconds(offload: SuperOffload, step: float, backward: float, num_sub_groups: int) -> float:
    """The same; `backward`: seconds of the backward pass of the last micro-batch, which hides the step of every
    sub-group but the last. With clipping nothing is hidden.
    """
    if offload.is_clipped:
        return step
    unscale = step * _UNSCALE_BYTES / CPU_STEP_BYTES
    stepped = step - unscale
    return unscale + max(stepped / max(1, num_sub_groups), stepped - backward)


def _with_exposed_step(
    time: StepTime, offload: AsyncOffload, settings: PlanSettings, num_sub_groups: int, recomputed: float
) -> StepTime:
    """`recomputed`: the share of the layers whose forward pass runs twice."""
    part = next((part for part in time.parts if part.name == CPU_OPTIMIZER), None)
    if part is None:
        return time
    compute = time.seconds_of("compute")
    in_order = cpu_optimizer_bytes(1.0, replace(settings, steps_in_one_pass=False))
    step = part.seconds * in_order / cpu_optimizer_bytes(1.0, settings)  # neither is stepped in one pass
    if isinstance(offload, ZenFlow):
        exposed = zenflow_exposed_seconds(offload, step, compute)
    else:
        passes = 3 + recomputed
        backward = compute / settings.accumulation * (passes - 1) / passes
        exposed = super_offload_exposed_seconds(offload, step, backward, num_sub_groups)
    less = part.exposed - min(exposed, step)
    parts = tuple(
        TimePart(each.name, each.seconds, each.exposed - less) if each is part else each for each in time.parts
    )
    ratio = (time.seconds - less) / time.seconds
    return replace(
        time,
        seconds=time.seconds - less,
        bottleneck=bottleneck_of(parts),
        parts=parts,
        fixed_seconds=max(0.0, time.fixed_seconds - less),
        mfu=time.mfu / ratio,
        fast_seconds=time.fast_seconds * ratio,
        slow_seconds=time.slow_seconds * ratio,
    )


def has_coherent_link(device: Device | None) -> bool:
    """Has the GPU a fast way to its host, as Grace Hopper and Grace Blackwell have?"""
    return device is not None and device.pcie >= _COHERENT_LINK


def with_current_row(
    alternatives: tuple[Alternative, ...],
    offload: AsyncOffload,
    memory: MemoryEstimate,
    time: StepTime | None,
    fit: Fit,
) -> tuple[Alternative, ...]:
    """The alternatives of a run that has one of these: its own row is the run as it is."""
    return tuple(
        replace(
            each,
            title=f"{each.title} with {offload.title}",
            gpu_peak=memory.gpu_peak,
            host_peak=memory.host_peak,
            fit=fit,
            time=time,
            memory=memory,
        )
        if each.is_current
        else each
        for each in alternatives
    )


def can_step_async(spec: RunSpec) -> bool:
    """Does the optimizer that is rendered step weights as ZenFlow and SuperOffload do, by Adam and not in 4 bits?"""
    optimizer = Optimizer.of(spec.deepspeed.get("optimizer"), spec.optimizer.type, None)
    return optimizer.name in ("adam", "adamw") and spec.model.quantization is None


def list_async_offloads(
    model: ModelFacts, settings: PlanSettings, device: Device | None, capacity: Capacity, rates: Rates | None = None
) -> tuple[Alternative, ...]:
    """The run with ZenFlow, and on a GPU with a coherent link with SuperOffload, where DeepSpeed trains so: on CUDA,
    without a pipeline or AutoTP; for a run that `can_step_async`.

    Their settings are those of the ordinary offload at stage 3, SuperOffload's with small sub-groups, as it hides all
    but the last. `harness launch` of this version does not start ZenFlow, and the title says so.
    """
    is_divided = settings.pipeline_parallel_size > 1 or settings.tensor_parallel_size > 1
    if device is None or device.is_cpu or settings.num_states != 2 or not settings.mixed_precision or is_divided:
        return ()
    param_device = settings.param_device if settings.param_device != "nvme" else "none"
    # the harness's patch of the gradients leaves both alone
    offloaded = replace(with_offload(settings, 3, "cpu", param_device), separate_offload_grads=True)
    small = replace(offloaded, sub_group_size=min(offloaded.sub_group_size, SMALL_SUB_GROUP))
    choices: list[tuple[AsyncOffload, PlanSettings, str]] = [(ZenFlow(is_overlapped=True), offloaded, " (no launch)")]
    choices += [(SuperOffload(is_clipped=False), small, "")] if has_coherent_link(device) else []
    found = []
    for offload, other, note in choices:
        memory, time = estimate_memory(model, other, device), estimate_step_time(model, other, device, rates)
        changed, changed_time = with_async_offload(memory, time, offload, model, other)
        title = f"{title_of(other)} with {offload.title}{note}"
        peaks = changed.gpu_peak, changed.host_peak, changed.nvme_bytes
        fit = check_fit(changed, capacity)
        found.append(Alternative(title, other, *peaks, fit, changed_time, is_current=False, memory=changed))
    return tuple(found)
