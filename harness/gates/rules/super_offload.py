# SPDX-License-Identifier: Apache-2.0
"""SuperOffload and its share of the CPU cores."""

from __future__ import annotations

from typing import Any

from harness.gates.registry import Cite, Context, Findings, Fix, gate

_SWITCH = "deepspeed.zero_optimization.offload_optimizer.super_offload"
_CORES = "deepspeed.zero_optimization.offload_optimizer.cpuadam_cores_perc"


def _is_super_offload_on(ctx: Context) -> bool:
    return ctx.ds("zero_optimization.offload_optimizer.super_offload") is True


def _is_super_offload_used(ctx: Context) -> bool:
    """Is SuperOffload switched on at the stage that reads it?"""
    return ctx.stage == 3 and _is_super_offload_on(ctx)


def _get_share_of_cores(ctx: Context) -> Any:
    return ctx.ds("zero_optimization.offload_optimizer.cpuadam_cores_perc")


@gate(
    "OF015 super-offload-below-stage-3",
    severity="warning",
    unread="stage 3 alone reads it",
    cites=Cite("runtime/engine.py", "Stage3ZeroOptimizer = DeepSpeedZeroOptimizer_Stage3 if not self.super_offload("),
    since="0.18.0",
)
def super_offload_below_stage_3(ctx: Context) -> Findings:
    """SuperOffload below stage 3.

    `super_offload: true` in `offload_optimizer` at stage 1 or 2. (At stage 0 nothing is offloaded:
    `offload-without-zero`.)

    Why: Only stage 3 reads it. Below, DeepSpeed accepts the flag and offloads the optimizer in the ordinary way (run on
    0.19.8 at stage 2).

    Example:
        zero.stage: 2
        zero.offload_optimizer.device: cpu
        deepspeed.zero_optimization.offload_optimizer.super_offload: true

    Use instead:
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        deepspeed.zero_optimization.offload_optimizer.super_offload: true
    """
    if 0 < ctx.stage < 3 and _is_super_offload_on(ctx):
        yield ctx.unread(
            f"{ctx.key(_SWITCH)} is not read at ZeRO stage {ctx.stage}, only at stage 3",
            _SWITCH,
            related=[("zero.stage", "the stage is set here")],
            fix=Fix(f"remove it, or set {ctx.key('zero.stage')} to 3", {_SWITCH: None}, safe=True),
        )


@gate(
    "OF016 super-offload-off-cuda",
    upstream="asserts",
    cites=Cite("runtime/superoffload/superoffload_stage3.py", "SuperOffload only supports NVIDIA CUDA GPUs"),
    since="0.18.9",
    needs=("the accelerator",),
    when=_is_super_offload_used,
)
def super_offload_off_cuda(ctx: Context) -> Findings:
    """SuperOffload without CUDA.

    `super_offload: true` in `offload_optimizer` at stage 3 on another accelerator than CUDA.

    Why: DeepSpeed asserts "SuperOffload only supports NVIDIA CUDA GPUs" when the engine is built (run on 0.19.8). It is
    made for Grace Hopper and similar machines with a fast link to the host.

    Example:
        precision.bf16: true
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        deepspeed.zero_optimization.offload_optimizer.super_offload: true
        cluster.gpu: cpu

    Use instead:
        precision.bf16: true
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        deepspeed.zero_optimization.offload_optimizer.super_offload: true
        cluster.gpu: H100-80GB
    """
    if ctx.accelerator != "cuda" and ctx.is_optimizer_offloaded:
        yield ctx.finding(
            f"{ctx.key(_SWITCH)} needs CUDA, this run is on `{ctx.accelerator}`",
            _SWITCH,
            fix=Fix("remove it", {_SWITCH: None}, effect="ordinary offload: the same steps"),
        )


@gate(
    "OF017 super-offload-without-adam",
    upstream="crashes",
    cites=Cite("runtime/superoffload/superoffload_stage3.py", '"amsgrad": '),
    since="0.18.0",
    when=_is_super_offload_used,
    unseen="needs CUDA",
)
def super_offload_without_adam(ctx: Context) -> Findings:
    """SuperOffload with an optimizer other than Adam.

    `super_offload: true` in `offload_optimizer` at stage 3 with an optimizer that does not become DeepSpeedCPUAdam.

    Why: The worker process that steps on the CPU copies `betas`, `eps` and `amsgrad` out of the optimizer's groups; an
    optimizer without them ends in a KeyError when the engine is built (read in 0.19.8).

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        deepspeed.zero_optimization.offload_optimizer.super_offload: true
        deepspeed.optimizer.type: Adagrad
        deepspeed.optimizer.params.lr: 0.01
    """
    optimizer = ctx.optimizer
    if optimizer.name not in ("", "adam", "adamw") and ctx.is_optimizer_offloaded:
        yield ctx.finding(
            f"{ctx.key(_SWITCH)} steps with Adam alone, this is {optimizer.type}",
            _SWITCH,
            related=[(f"{optimizer.key}.type", "the optimizer is set here")],
            fix=Fix("remove it", {_SWITCH: None}, effect="ordinary offload: the same steps"),
        )


@gate(
    "OF018 cores-for-super-offload-without-it",
    severity="info",
    unread="the engine reads OMP_NUM_THREADS",
    cites=Cite("runtime/superoffload/superoffload_utils.py", "cpuadam_cores_perc: float"),
    since="0.18.0",
)
def cores_without_super_offload(ctx: Context) -> Findings:
    """SuperOffload's share of cores without SuperOffload.

    `cpuadam_cores_perc` in an `offload_optimizer` with a device, at any stage, without `super_offload: true`.

    Why: Only the worker process of SuperOffload reads it; ordinary CPU Adam takes the threads that OpenMP gives it
    (read in 0.19.8).

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        deepspeed.zero_optimization.offload_optimizer.cpuadam_cores_perc: 0.5
    """
    if _get_share_of_cores(ctx) is not None and ctx.is_optimizer_offloaded and not _is_super_offload_on(ctx):
        yield ctx.unread(
            f"{ctx.key(_CORES)} is read by SuperOffload alone, which is not switched on",
            _CORES,
            fix=Fix("remove it; `OMP_NUM_THREADS` sets the threads of CPU Adam", {_CORES: None}, safe=True),
            of_key=True,
        )


@gate(
    "OF019 super-offload-without-cores",
    upstream="raises",
    cites=Cite("runtime/superoffload/superoffload_utils.py", "cpuadam_cores_perc must be between 0 and 1"),
    since="0.18.0",
    unseen="needs CUDA",
)
def super_offload_without_cores(ctx: Context) -> Findings:
    """SuperOffload with no cores.

    `cpuadam_cores_perc: 0` in `offload_optimizer` with `super_offload: true` at stage 3.

    Why: The configuration accepts 0, but the worker raises ValueError "cpuadam_cores_perc must be between 0 and 1" when
    the engine is built (read in 0.19.8).

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        deepspeed.zero_optimization.offload_optimizer.super_offload: true
        deepspeed.zero_optimization.offload_optimizer.cpuadam_cores_perc: 0.0
    """
    if _is_super_offload_used(ctx) and _get_share_of_cores(ctx) == 0:
        yield ctx.finding(
            f"{ctx.key(_CORES)} is 0: no core is left for the optimizer",
            _CORES,
            fix=ctx.fix_to_set(_CORES, 0.8, "DeepSpeed's default", safe=True),
        )
