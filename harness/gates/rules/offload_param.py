# SPDX-License-Identifier: Apache-2.0
"""Offload of parameters, and the buffers that they are swapped through."""

from __future__ import annotations

from typing import Any

from harness.gates.registry import Cite, Context, Findings, Fix, gate
from harness.gates.swap_sizes import (
    get_parameter_buffer_size,
    is_kept_in_host_memory,
    list_shard_sizes,
    list_swapped_sizes,
    resolve_zero_value,
)

_DEVICE = "zero.offload_param.device"


@gate(
    "OF001 parameter-offload-below-stage-3",
    severity=("error", "warning"),
    cites=Cite("runtime/engine.py", "offload_param_config=self.zero_offload_param()"),
    when=lambda ctx: ctx.has_stage,
)
def parameter_offload_below_stage_3(ctx: Context) -> Findings:
    """Parameter offload below ZeRO stage 3.

    `zero.offload_param.device` other than `none` with `zero.stage` 0, 1 or 2.

    Why: DeepSpeed reads `offload_param` at stage 3 only. Below it, the block is accepted and nothing is offloaded: the
    parameters stay on the device, DeepSpeed does not even read NVMe paths, and the exit code is 0 (run on 0.19.8 at
    stages 0, 1 and 2). Many public files have it together with an offloaded optimizer, where it does no harm: a warning
    in a DeepSpeed JSON, an error in a run spec.

    Example:
        zero.stage: 2
        zero.offload_param.device: cpu
        zero.offload_optimizer.device: cpu
    """
    device = ctx.offload_device("offload_param")
    if device != "none" and ctx.stage != 3:
        yield ctx.unread(
            f"parameters are not offloaded to {device} at ZeRO stage {ctx.stage}, only at stage 3",
            _DEVICE,
            severity="warning" if ctx.run.kind == "deepspeed-json" else "error",
            related=[("zero.stage", "the stage is set here")],
            notes=["DeepSpeed silently accepts this and keeps the parameters on the device"],
            fix=ctx.fix_to_set("zero.stage", 3, effect="the same steps with sharded parameters, which are offloaded"),
        )


@gate(
    "OF007 parameters-offloaded-but-not-the-optimizer",
    severity="warning",
    cites=Cite("runtime/zero/stage3.py", "if offload_param_config is not None and offload_param_config.device"),
    when=lambda ctx: ctx.stage == 3 and ctx.optimizer.type is not None,
)
def parameter_offload_without_optimizer(ctx: Context) -> Findings:
    """Parameters offloaded, the optimizer left on the device.

    `zero.offload_param` at stage 3 with an optimizer that is not offloaded.

    Why: It runs. The 16-bit parameters are 2 bytes each; master weights and the two states of Adam are 12, and those
    stay on the device (run on 0.19.8). To save memory, offload the optimizer first.

    Example:
        zero.stage: 3
        zero.offload_param.device: cpu
    """
    block = "zero_optimization.offload_optimizer"
    if ctx.has_key(block) and not ctx.has_key(f"{block}.device"):
        return  # the optimizer's device is missing: OF006
    if ctx.offload_device("offload_param") != "none" and not ctx.is_optimizer_offloaded:
        yield ctx.finding(
            f"{ctx.key('zero.offload_param')} moves 2 bytes a parameter, the optimizer's 12 stay on the device",
            _DEVICE,
            label="the smaller part",
            fix=ctx.fix_to_set(
                "zero.offload_optimizer.device", "cpu", effect="the same steps, with the optimizer on the CPU"
            ),
        )


def _are_params_on_nvme(ctx: Context) -> bool:
    return ctx.stage == 3 and ctx.offload_device("offload_param") == "nvme"


def _get_prefetch_bucket_size(ctx: Context) -> Any:
    return ctx.ds("zero_optimization.stage3_prefetch_bucket_size", 50_000_000)


def _get_key_or_device(ctx: Context, key: str) -> str:
    """The key, or that of the device where the file does not have it."""
    return key if ctx.source.has_key(key) else _DEVICE


@gate(
    "OF008 swap-buffer-too-small",
    upstream="asserts",
    cites=Cite("runtime/swap_tensor/partitioned_param_swapper.py", "than buffer size"),
    needs=("world size", "model facts"),
    when=_are_params_on_nvme,
    unseen="needs shards of 1 MiB and more",
)
def small_swap_buffer(ctx: Context) -> Findings:
    """A swap buffer smaller than a parameter's shard.

    `zero.offload_param.buffer_size`, in elements, against the largest shard that goes to NVMe: the largest parameter
    divided by the ranks, if that is 1 MiB or more.

    Why: Each parameter is swapped through one buffer. DeepSpeed asserts "More elements ... than buffer size ..." when
    the model is built (run on 0.19.8). The default of 1e8 elements is too small for the embedding of many models on few
    ranks. Small test models hide it: their shards stay in memory. In a run spec the default is the size of the largest
    shard.

    Example:
        model.config: llama-2-layers
        zero.stage: 3
        zero.offload_param.device: nvme
        zero.offload_param.nvme_path: /local_nvme
        zero.offload_param.buffer_size: 10000000
        zero.offload_optimizer.device: cpu
        launch.num_gpus: 2
    """
    shards = list_shard_sizes(ctx)
    if shards is None:
        return
    size = get_parameter_buffer_size(ctx)
    largest = max(list_swapped_sizes(ctx, shards), default=0)
    if largest <= size:
        return
    key = "zero.offload_param.buffer_size"
    needed = -(-largest // (1 << 20)) << 20  # rounded up to a multiple of 2**20
    yield ctx.finding(
        f"{ctx.key(key)} is {size:,} elements, the largest parameter has a shard of {largest:,}",
        _get_key_or_device(ctx, key),
        label="too small",
        notes=["DeepSpeed asserts this while it builds the model"],
        fix=ctx.fix_to_set(key, needed, effect="larger buffers in host memory"),
    )


@gate(
    "OF009 too-few-swap-buffers",
    upstream="asserts",
    severity=("error", "warning"),
    cites=Cite("runtime/swap_tensor/partitioned_param_swapper.py", "Not enough buffers"),
    needs=("world size", "model facts"),
    when=_are_params_on_nvme,
    unseen="needs shards of 1 MiB and more",
)
def few_swap_buffers(ctx: Context) -> Findings:
    """Too few swap buffers for the parameters in use.

    `zero.offload_param.buffer_count` against the number of parameters that are gathered at the same time with
    parameters on NVMe, without those that `max_in_cpu` keeps in host memory.

    Why: Every parameter that is gathered or prefetched holds a swap buffer, and `zero.stage3_max_reuse_distance` (1e9
    elements by default) keeps them gathered for long: "Not enough buffers 0 for swapping 1" in the forward pass. One
    Llama layer of width 2048 on two ranks failed with the default 5 and with 8 and ran with 12; two layers failed with
    12 and ran with 16 (run on 0.19.8). For models larger than the reuse distance the number is an estimate and the
    finding a warning. In a run spec the default is as many as the model needs, unless `tuned_defaults: false`.

    Example:
        model.config: llama-2-layers
        zero.stage: 3
        zero.offload_param.device: nvme
        zero.offload_param.nvme_path: /local_nvme
        zero.offload_param.max_in_cpu: 0
        zero.offload_param.buffer_count: 8
        zero.offload_optimizer.device: cpu
        launch.num_gpus: 2
    """
    shards = list_shard_sizes(ctx)
    model = ctx.model
    if shards is None or model is None or is_kept_in_host_memory(ctx, shards):
        return
    reuse = ctx.ds("zero_optimization.stage3_max_reuse_distance", 1_000_000_000)
    total = model.num_parameters
    live = min(total, reuse // 2 + model.largest_module + _get_prefetch_bucket_size(ctx))
    needed = -(-len(list_swapped_sizes(ctx, shards)) * live // total)
    count = resolve_zero_value(ctx, "offload_param.buffer_count", 5)
    if needed <= count:
        return
    key = "zero.offload_param.buffer_count"
    is_exact = live == total
    yield ctx.finding(
        f"{ctx.key(key)} is {count}, about {needed} parameters are gathered at the same time",
        _get_key_or_device(ctx, key),
        severity="error" if is_exact else "warning",
        label="each holds a swap buffer",
        notes=[f"a smaller {ctx.key('zero.stage3_max_reuse_distance')} releases parameters sooner"],
        fix=ctx.fix_to_set(key, needed, effect="more host memory for buffers"),
    )


@gate(
    "OF031 parameters-read-ahead-twice",
    upstream="asserts",
    severity="warning",
    cites=Cite("runtime/zero/partitioned_param_coordinator.py", "swap_in_params.append(param)"),
    when=lambda ctx: _are_params_on_nvme(ctx) and ctx.run.kind == "deepspeed-json",
    unseen="needs shards of 1 MiB and more",
)
def double_read_ahead(ctx: Context) -> Findings:
    """Parameters on NVMe that are prefetched twice.

    `offload_param.device: nvme` at stage 3 with `stage3_prefetch_bucket_size` above 0, in a DeepSpeed JSON. `harness
    launch` patches this.

    Why: DeepSpeed prefetches a parameter twice that is used twice within the prefetch bucket: the head between forward
    and backward, or a matrix that is recomputed. The run fails in its second step, or later, with "param 38 already
    assigned swap buffer id 14" (run on 0.19.8 with two and four Llama layers; with a bucket of 0, which disables
    prefetching, they train). Parameters that `max_in_cpu` keeps in host memory are not read at all and hide the fault.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "bf16": {"enabled": true},
      "zero_optimization": {
        "stage": 3,
        "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "max_in_cpu": 0},
        "offload_optimizer": {"device": "cpu"}
      }
    }
    """
    prefetch = _get_prefetch_bucket_size(ctx)
    if isinstance(prefetch, int) and prefetch > 0:
        key = "zero.stage3_prefetch_bucket_size"
        yield ctx.finding(
            "parameters on NVMe are prefetched, and one that is used twice within a bucket ends the run",
            _get_key_or_device(ctx, key),
            notes=["DeepSpeed asserts `param ... already assigned swap buffer id ...` in the second step or later"],
            fix=ctx.fix_to_set(key, 0, effect="each read is waited for"),
        )


@gate(
    "OF061 parameters-on-nvme-that-cannot-be-saved",
    upstream="crashes",
    cites=Cite("runtime/engine.py", "if self.zero_has_nvme_offload():"),
    until="0.16.3",
    when=_are_params_on_nvme,
)
def unsavable_params_on_nvme(ctx: Context) -> Findings:
    """Parameters on NVMe beside an optimizer elsewhere, up to DeepSpeed 0.16.3.

    `offload_param.device: nvme` at stage 3 while `offload_optimizer.device` is not `nvme`.

    Why: `save_checkpoint` and `load_checkpoint` copy the files of the optimizer's swapper wherever anything is on NVMe,
    and there is no such swapper: AttributeError "'NoneType' object has no attribute 'swap_folder'" (#4998; read in
    0.14.5 to 0.16.3). From 0.16.4 on they look at the optimizer's device alone (read up
    to 0.19.8, not run).

    Example:
        zero.stage: 3
        zero.offload_param.device: nvme
        zero.offload_param.nvme_path: /local_nvme
        zero.offload_optimizer.device: cpu
        zero.stage3_prefetch_bucket_size: 0
    """
    other = ctx.offload_device("offload_optimizer")
    if other == "nvme":
        return
    yield ctx.finding(
        f"parameters on NVMe with the optimizer on `{other}`: DeepSpeed {ctx.target.text} cannot save or load",
        _DEVICE,
        related=[("zero.offload_optimizer.device", "not on NVMe")],
        notes=["the checkpoint ends with `'NoneType' object has no attribute 'swap_folder'`"],
        fix=Fix(
            f"set {ctx.key(_DEVICE)} to cpu, put the optimizer on NVMe as well, or install DeepSpeed 0.16.4 or newer",
            {_DEVICE: "cpu", "zero.offload_param.nvme_path": None},
            effect="host memory holds the parameters",
        ),
    )
