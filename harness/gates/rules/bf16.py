# SPDX-License-Identifier: Apache-2.0
"""Training in bf16, and 16-bit master weights and optimizer states."""

from __future__ import annotations

import os
from collections.abc import Sequence

from harness.facts.devices import Device, device_by_driver_name, find_device, is_before_ampere
from harness.gates.dtypes import grad_accum_dtype, model_dtype
from harness.gates.registry import Cite, Context, Findings, Fix, Severity, gate
from harness.hostinfo.machine import accelerators_for

_BF16 = "precision.bf16"
_STAGE = "zero.stage"
_BF16_MASTERS = "bf16.bf16_master_weights_and_grads"
_BF16_STATES = "bf16.bf16_optimizer_states"
_ZERO_BLOCK = {"zero_optimization"}
_PRECISION_KEYS = ("bf16", "bfloat16", "fp16", "torch_autocast", "amp", "bf16.enabled", "fp16.enabled")


@gate(
    "PR061 bf16-without-zero-trains-otherwise",
    upstream="wrong",
    since="0.17.6",
    until="0.18.5",
    when=lambda ctx: ctx.stage == 0 and ctx.is_enabled("bf16") and ctx.pipeline_parallel_size == 1,
)
def bf16_without_zero(ctx: Context) -> Findings:
    """bf16 at stage 0 that trains on old gradients, or not at all.

    `precision.bf16` at ZeRO stage 0, outside a pipeline and without gradients in fp32, on DeepSpeed 0.17.6 to 0.18.5.

    Why: DeepSpeed takes the optimizers of fp16 here. 0.17.6 to 0.18.2 never clear the gradients, so that each step is
    taken with those of all earlier steps as well. 0.18.3 to 0.18.5 divide the gradients by a loss scale of 65536 that
    the loss was not multiplied with: the updates of Adam and SGD are too small to change a bf16 weight. Both were found
    by comparison with plain torch, whatever the accumulation, the clipping and the caller (run on 0.17.5 and 0.18.2 to
    0.18.5; DeepSpeed's issue 7837). On 0.17.6 SGD does the same, Adam ends with an AttributeError about
    `dp_process_group` (run). Stage 1 is right in all of them, and costs no more memory.

    Example:
        precision.bf16: true
        zero.stage: 0
    """
    if grad_accum_dtype(ctx) == "fp32":
        return
    is_silent = ctx.target.version >= (0, 18, 3)
    what = "trains nothing" if is_silent else "adds up the gradients of all steps"
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} {what} in bf16 at ZeRO stage 0",
        _BF16,
        label="gradients are divided by a loss scale of 65536" if is_silent else "gradients are never cleared",
        related=[(_STAGE, "the stage is set here")],
        notes=["the gradient norm is wrong as well, and with it what is clipped"],
        fix=ctx.fix_to_set(_STAGE, 1, effect="trains the steps that were meant"),
    )


@gate(
    "PR062 bf16-counts-a-gradient-twice",
    upstream="wrong",
    severity="info",
    cites=Cite("runtime/bf16_optimizer.py", "_update_hp_grad(lp_param, group_idx, param_idx, clear_lp_grads=False)"),
    since="0.16.5",
    until="0.17.0",
    when=lambda ctx: ctx.run.kind != "spec" and ctx.stage == 0 and ctx.is_enabled("bf16"),
)
def bf16_gradient_counted_twice(ctx: Context) -> Findings:
    """bf16 at stage 0 that counts a gradient twice.

    A DeepSpeed JSON with `bf16.enabled` at stage 0 and `bf16.immediate_grad_update` left out or true, on DeepSpeed
    0.16.5 to 0.17.0.

    Why: The gradient of a parameter is added to the fp32 sum whenever its hook fires, and not cleared: where a module
    is used twice under reentrant activation checkpointing the hook fires twice, and the first gradient counts twice
    (run on 0.16.5 to 0.17.0: three steps end 0.15 of their length away from plain torch). Older releases are right, and
    those from 0.17.1 on, where the key is off by default (run).

    Example: {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
      "zero_optimization": {"stage": 0}
    }
    """
    if ctx.ds("bf16.immediate_grad_update", True) is not True or ctx.pipeline_parallel_size > 1:
        return
    yield ctx.finding(
        "a module that is used twice under reentrant checkpointing has its first gradient counted twice",
        _BF16,
        related=[(_STAGE, "the stage is set here")],
        notes=["only models that checkpoint the same module twice, with `use_reentrant=True`, are affected"],
        fix=ctx.fix_to_set(_STAGE, 1, effect="gradients are counted once; optimizer states are sharded"),
    )


@gate(
    "PR005 two-spellings-of-bf16",
    severity=("error", "warning"),
    unread="DeepSpeed drops `bfloat16` where `bf16` is written",
    cites=(
        Cite("runtime/precision_config.py", "bf16_config_dict = param_dict.get(BFLOAT16_OLD, {})", since="0.17.1"),
        Cite("runtime/config.py", "for key in [BFLOAT16, BFLOAT16_OLD]:", until="0.17.0"),
    ),
    when=lambda ctx: ctx.has_key("bf16") and ctx.has_key("bfloat16"),
)
def two_spellings_of_bf16(ctx: Context) -> Findings:
    """`bf16` and `bfloat16` at once.

    Both blocks in one configuration.

    Why: `bfloat16` is the old name of `bf16`. Where both are written, DeepSpeed reads `bf16` and silently drops the
    other block (run on 0.19.8): with `bf16.enabled: false` and `bfloat16.enabled: true` the model is trained in fp32.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
      "zero_optimization": {"stage": 1},
      "bf16": {"enabled": false},
      "bfloat16": {"enabled": true}
    }
    """
    key = "deepspeed.bfloat16"
    is_lost = ctx.is_enabled("bfloat16") and not ctx.is_enabled("bf16") and not ctx.is_auto("bf16.enabled")
    yield ctx.finding(
        f"{ctx.key(key)} is dropped because `bf16` is there too"
        + ("; it is off, so the model is trained in fp32" if is_lost else ""),
        key,
        severity="error" if is_lost else "warning",
        label="not read",
        related=[(_BF16, "this one counts")],
        fix=Fix(
            f"remove {ctx.key(key)} and set {ctx.key(_BF16)} to true",
            {key: None, _BF16: True},
            effect="trains in bf16 instead of fp32",
        )
        if is_lost
        else ctx.fix_to_remove(key, safe=True),
        of_key=True,
    )


@gate(
    "PR014 bf16-on-an-old-gpu",
    severity="warning",
    cites=Cite("runtime/engine.py", "Type bf16 is not supported on your device.", since="0.16.0"),
    when=lambda ctx: ctx.is_enabled("bf16") and ctx.run.spec.cluster.gpu is not None,
    unseen="needs a GPU older than Ampere",
)
def bf16_on_old_gpu(ctx: Context) -> Findings:
    """bf16 on a GPU that does not compute in it.

    `precision.bf16` with a `cluster.gpu` older than Ampere: V100, T4, P100, RTX 20.

    Why: These have no bf16 units. torch says that bf16 is supported, since it emulates it, DeepSpeed believes it, and
    training is slower than in fp32. fp16 has the tensor cores there (read in torch 2.13).

    Example:
        precision.bf16: true
        zero.stage: 2
        cluster.gpu: V100-32GB
    """
    gpu = str(ctx.run.spec.cluster.gpu)
    if is_before_ampere(gpu):
        fp16_key = "precision.fp16"
        yield ctx.finding(
            f"a {gpu[:30]} has no bf16 arithmetic: torch emulates it, slower than fp32",
            _BF16,
            related=[("cluster.gpu", "older than Ampere")],
            fix=Fix(
                f"set {ctx.key(_BF16)} to false and {ctx.key(fp16_key)} to true",
                {_BF16: False, fp16_key: True},
                effect="trains in fp16, with loss scaling",
            ),
        )


@gate(
    "PR067 full-precision-by-default",
    severity=("warning", "info"),
    cites=(
        Cite("runtime/precision_config.py", "enabled: bool = False", since="0.17.1"),
        Cite("runtime/constants.py", "FP16_ENABLED_DEFAULT = False"),
    ),
    when=lambda ctx: not any(ctx.has_key(key) for key in _PRECISION_KEYS),
)
def full_precision_by_default(ctx: Context) -> Findings:
    """No precision: the model trains in fp32.

    A run spec without `precision.bf16` and `precision.fp16`, for GPUs that compute in bf16: of `cluster.gpu`, else of
    this machine at a launch. A JSON for plain DeepSpeed without `bf16`, `fp16` and `torch_autocast`, unless it
    trains on CPUs; of a ZeRO block alone, which something else completes, only with parameters offloaded.

    Why: DeepSpeed's default is fp32. Weights, gradients and activations take twice the memory, and the matrix products
    of an H100 a fifteenth of its 16-bit speed (data sheet). bf16 needs no loss scaling and keeps fp32 master weights.
    `precision.bf16: false` says that fp32 is meant.

    Example:
        zero.stage: 2
        cluster.gpu: H100-80GB
    """
    if ctx.consumer not in (None, "deepspeed"):
        return  # the Trainer and accelerate add the block of their own argument
    device = _find_gpu(ctx)
    if device is not None and computes_in_bf16(device):
        key, faster = "cluster.gpu", device.flops_16 / device.flops_32 if device.flops_32 else 0.0
        speed = f", {faster:.0f} times as fast" if faster > 1 else ""
        message = f"no precision is set, so the model trains in fp32; {device.name} computes in bf16{speed}"
        severity: Severity = "warning"
    elif ctx.run.kind == "deepspeed-json" and ctx.accelerator != "cpu" and ctx.source.data.keys() - _ZERO_BLOCK:
        key, severity = _BF16, "warning"
        message = "no `bf16` and no `fp16`: the model trains in fp32, with twice the bytes of activations and traffic"
    elif ctx.run.kind != "spec" and ctx.offload_device("offload_param") != "none":
        key, severity = ctx.spec_key("zero_optimization.offload_param"), "info"
        message = "no `bf16` and no `fp16`: the model trains in fp32, with twice the bytes to offload"
    else:
        return
    yield ctx.finding(
        message,
        key,
        severity=severity,
        notes=[f"where fp32 is meant, set {ctx.key(_BF16)} to false"],
        fix=ctx.fix_to_set(_BF16, True, effect="trains in bf16 with fp32 master weights"),
    )


@gate(
    "PR068 fp16-where-bf16-is-as-fast",
    severity="info",
    cites=Cite("runtime/fp16/loss_scaler.py", "class DynamicLossScaler"),
    when=lambda ctx: ctx.is_enabled("fp16"),
    unseen="needs a GPU of Ampere or newer",
)
def fp16_on_new_gpu(ctx: Context) -> Findings:
    """fp16 on a GPU that computes in bf16.

    `precision.fp16` on GPUs that compute in bf16, Ampere or newer: of `cluster.gpu`, else of this machine at a launch.

    Why: Both formats are equally fast there. fp16 ends at 65504 and at 6e-8, so gradients need a loss scale, and each
    overflow skips a step. bf16 has the range of fp32. A model that was trained in bf16, as most were from 2022 on, can
    have activations beyond fp16 (read in 0.19.8).

    Example:
        precision.fp16: true
        zero.stage: 2
        cluster.gpu: H100-80GB
    """
    device = _find_gpu(ctx)
    if device is not None and computes_in_bf16(device):
        fp16_key = "precision.fp16"
        yield ctx.finding(
            f"{device.name} computes in bf16 as fast as in fp16, without loss scaling",
            fp16_key,
            fix=Fix(
                f"set {ctx.key(_BF16)} to true and {ctx.key(fp16_key)} to false",
                {_BF16: True, fp16_key: False},
                effect="trains in bf16, without loss scaling and its skipped steps",
            ),
        )


def _find_gpu(ctx: Context) -> Device | None:
    """The kind of `cluster.gpu`; else that of this machine, where it trains; None where it is not known."""
    if ctx.run.spec.cluster.gpu is not None:
        return find_device(ctx.run.spec.cluster.gpu)
    if ctx.accelerator != "cuda" or ctx.run.cluster is not None:
        return None
    own = accelerators_for({**os.environ, **ctx.run.spec.launch.env})
    return device_by_driver_name(own[0].name, own[0].memory or 0) if own else None


def computes_in_bf16(device: Device) -> bool:
    """Has it units for bf16?"""
    return not device.is_cpu and not is_before_ampere(device.name)


@gate(
    "PR020 overflow-check-switched-off",
    severity="warning",
    unread="read at stages 1 and 2 alone",
    cites=Cite("runtime/engine.py", "check_grad_overflow = self._config.bfloat16_config.check_grad_overflow"),
    since="0.19.3",
    when=lambda ctx: ctx.is_enabled("bf16"),
)
def switched_off_overflow_check(ctx: Context) -> Findings:
    """bf16 without the overflow check.

    `bf16.check_grad_overflow: false`.

    Why: At ZeRO stages 1 and 2 a gradient with inf or nan reaches the weights: after one bad batch every later loss is
    nan, with clipping too (run on 0.19.8). At stages 0 and 3 the key is not read and the step is skipped all the same.
    Up to 0.19.2 false was the default.

    Example:
        precision.bf16: true
        zero.stage: 2
        deepspeed.bf16.check_grad_overflow: false
    """
    if ctx.ds("bf16.check_grad_overflow") is False:
        is_read = ctx.stage in (1, 2)
        key = "deepspeed.bf16.check_grad_overflow"
        yield ctx.finding(
            "one gradient with inf or nan makes all weights nan"
            if is_read
            else f"{ctx.key(key)} is not read at ZeRO stage {ctx.stage}",
            key,
            label="" if is_read else "has no effect",
            related=[(_STAGE, "the stage is set here")],
            fix=ctx.fix_to_remove(key, safe=not is_read, effect="a step with inf or nan is skipped" if is_read else ""),
        )


def _fix_master_flags(ctx: Context, keys: Sequence[str]) -> Fix:
    """The fix that removes these flags of 16-bit master weights and states."""
    title = "remove " + " and ".join(map(ctx.key, keys))
    return Fix(title, dict.fromkeys(keys), effect="keeps master weights in fp32")


@gate(
    "PR021 masters-in-16-bit-at-stage-0",
    upstream="asserts",
    cites=(
        Cite(
            "runtime/config.py",
            "Bf16_master_weights_and_grads is only supported with ZeRO Stage 1, 2, or 3.",
            since="0.18.3",
        ),
        Cite(
            "runtime/config.py",
            "Fp16_master_weights_and_grads is only supported with ZeRO Stage 2 for now.",
            until="0.18.2",
        ),
    ),
    when=lambda ctx: ctx.stage == 0 or ctx.target.version < (0, 18, 3),
)
def sixteen_bit_masters_at_stage_0(ctx: Context) -> Findings:
    """16-bit master weights without ZeRO.

    `bf16.bf16_master_weights_and_grads`, `bf16.bf16_optimizer_states` or `fp16.fp16_master_weights_and_grads` at ZeRO
    stage 0; up to 0.18.2 the last of them at stages 1 and 3, too.

    Why: Only ZeRO optimizers keep master weights in 16-bit. DeepSpeed asserts it when it reads the configuration, even
    where the block itself is off (run on 0.19.8). Up to 0.18.2 "Fp16_master_weights_and_grads is only supported with
    ZeRO Stage 2 for now" (read).

    Example:
        optimizer.type: sgd
        precision.bf16: true
        zero.stage: 0
        deepspeed.bf16.bf16_master_weights_and_grads: true
    """
    flags = (_BF16_MASTERS, _BF16_STATES, "fp16.fp16_master_weights_and_grads")
    keys = [f"deepspeed.{flag}" for flag in flags if ctx.ds(flag) is True]
    if ctx.stage > 0:  # up to 0.18.2, which does not know the flags of bf16
        keys = [key for key in keys if key.startswith("deepspeed.fp16") and ctx.stage != 2]
    if keys:
        key = keys[0]
        is_old_fp16 = key.startswith("deepspeed.fp16") and ctx.target.version < (0, 18, 3)
        yield ctx.finding(
            f"{ctx.key(key)} needs ZeRO stage {'2' if is_old_fp16 else '1, 2 or 3'}",
            key,
            related=[(_STAGE, "the stage is set here")],
            notes=["DeepSpeed asserts this when it reads its configuration, whether the block is on or off"],
            fix=_fix_master_flags(ctx, keys),
        )


@gate(
    "PR022 masters-in-16-bit-without-cpu-adam",
    upstream="asserts",
    cites=Cite("runtime/zero/stage_1_and_2.py", "Offload with DeepSpeedCPUAdam"),
    when=lambda ctx: ctx.stage > 0,
)
def sixteen_bit_masters_without_cpu_adam(ctx: Context) -> Findings:
    """16-bit master weights without DeepSpeedCPUAdam.

    `bf16.bf16_master_weights_and_grads` (unless `bf16.bf16_optimizer_states` keeps the states in bf16 too, on the
    device) and `fp16.fp16_master_weights_and_grads` at ZeRO stages 1 to 3: the optimizer is offloaded, and it is Adam
    or AdamW.

    Why: Only DeepSpeedCPUAdam keeps fp32 states with 16-bit master weights. Others are refused when the engine is
    built: `Master weights feature requires ZeRO-2 Offload with DeepSpeedCPUAdam` (run on 0.19.8).

    Example:
        precision.bf16: true
        zero.stage: 2
        deepspeed.bf16.bf16_master_weights_and_grads: true
    """
    dtype = model_dtype(ctx)
    if dtype not in ("bf16", "fp16"):
        return
    flag = f"{dtype}.{dtype}_master_weights_and_grads"
    if ctx.ds(flag) is not True:
        return
    is_offloaded = ctx.is_optimizer_offloaded
    if dtype == "bf16" and ctx.ds(_BF16_STATES) is True and not is_offloaded:
        return
    optimizer = ctx.optimizer
    # Adam or AdamW without `torch_adam`; the name is empty where the file leaves the optimizer to the script
    is_own_adam = optimizer.name in ("", "adam", "adamw") and not optimizer.params.get("torch_adam")
    if is_offloaded and is_own_adam and not ctx.ds("zero_optimization.zenflow"):
        return
    key = f"deepspeed.{flag}"
    device_key = "zero.offload_optimizer.device"
    yield ctx.finding(
        f"{ctx.key(key)} needs Adam or AdamW with an optimizer on the CPU",
        key,
        related=[(f"{optimizer.key}.type", "the optimizer"), (device_key, "where it is")],
        notes=["DeepSpeed asserts this when it builds the engine"],
        fix=ctx.fix_to_set(device_key, "cpu", effect="master weights and the step move to the CPU")
        if is_own_adam and not is_offloaded
        else ctx.fix_to_remove(key, effect="keeps master weights in fp32"),
    )


@gate(
    "PR023 states-in-16-bit-without-masters",
    upstream="asserts",
    cites=Cite("runtime/config.py", "bf16_optimizer_states requires bf16_master_weights_and_grads to be enabled."),
    since="0.18.3",
)
def sixteen_bit_states_without_masters(ctx: Context) -> Findings:
    """Optimizer states in bf16 without master weights in bf16.

    `bf16.bf16_optimizer_states` without `bf16.bf16_master_weights_and_grads` at ZeRO stages 1 to 3.

    Why: The states have the format of the master weights. DeepSpeed asserts it when it reads the configuration (run on
    0.19.8).

    Example:
        precision.bf16: true
        zero.stage: 2
        deepspeed.bf16.bf16_optimizer_states: true
    """
    if ctx.stage > 0 and ctx.ds(_BF16_STATES) is True and ctx.ds(_BF16_MASTERS) is not True:
        key = f"deepspeed.{_BF16_STATES}"
        masters_key = f"deepspeed.{_BF16_MASTERS}"
        yield ctx.finding(
            f"{ctx.key(key)} needs {ctx.key(masters_key)}",
            key,
            notes=["DeepSpeed asserts this when it reads its configuration"],
            fix=ctx.fix_to_set(masters_key, True, effect="keeps master weights in bf16 as well"),
        )


@gate(
    "PR024 masters-of-another-format",
    cites=(
        Cite("runtime/config.py", "if self.bfloat16_config.bf16_master_weights_and_grads:", since="0.18.3"),
        Cite(
            "runtime/config.py", "if self.float16_config.fp16_master_weights_and_grads:", since="0.17.1", until="0.18.2"
        ),
        Cite("runtime/config.py", "if self.fp16_master_weights_and_gradients:", until="0.17.0"),
    ),
    when=lambda ctx: ctx.stage > 0,
)
def sixteen_bit_masters_of_another_format(ctx: Context) -> Findings:
    """16-bit master weights of a model in another format.

    `bf16.bf16_master_weights_and_grads` while `bf16` is off, or `fp16.fp16_master_weights_and_grads` while `fp16` is
    off, at ZeRO stages 1 to 3.

    Why: The flags are read whether the block is on or off. The model stays in fp32 and its master weights, and with
    `bf16_optimizer_states` the states too, are kept in 16-bit: less precise than fp32, with the memory of fp32 (run on
    0.19.8: other losses than both fp32 and bf16).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
      "zero_optimization": {"stage": 2},
      "bf16": {"enabled": false, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}
    }

    Use instead: {
      "train_micro_batch_size_per_gpu": 1,
      "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
      "zero_optimization": {"stage": 2},
      "bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}
    }
    """
    dtype = model_dtype(ctx)
    if dtype is None:
        return
    for block in ("bf16", "fp16"):
        flag = f"{block}.{block}_master_weights_and_grads"
        if dtype == block or ctx.ds(flag) is not True:
            continue
        key = f"deepspeed.{flag}"
        keys = [key]
        if block == "bf16" and ctx.ds(_BF16_STATES):
            keys.append(f"deepspeed.{_BF16_STATES}")
        yield ctx.finding(
            f"{ctx.key(key)} is read although {ctx.key(f'precision.{block}')} is off: {dtype} with {block} masters",
            key,
            fix=_fix_master_flags(ctx, keys),
        )
