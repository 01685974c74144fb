# SPDX-License-Identifier: Apache-2.0
"""Training in fp16, and its loss scale."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate

_FP16 = "precision.fp16"
_BF16 = "precision.bf16"
_INITIAL_SCALE_POWER = "precision.initial_scale_power"


@gate(
    "PR001 fp16-with-bf16",
    upstream="asserts",
    cites=Cite("runtime/config.py", "bfloat16 and fp16 modes cannot be simultaneously enabled"),
)
def fp16_with_bf16(ctx: Context) -> Findings:
    """fp16 and bf16 at once.

    `precision.fp16` and `precision.bf16` both true.

    Why: Weights have one format. DeepSpeed asserts it while it reads the configuration; under `python -O` the assertion
    is gone and it is accepted.

    Example:
        precision.fp16: true
        precision.bf16: true
        zero.stage: 1
    """
    precision = ctx.run.spec.precision
    if precision.fp16 and precision.bf16:
        yield ctx.finding(
            f"{ctx.key(_FP16)} and {ctx.key(_BF16)} are both on",
            _FP16,
            related=[(_BF16, "and here")],
            notes=["DeepSpeed asserts this when it reads its configuration, on every rank"],
            fix=ctx.fix_to_set(_FP16, False, effect="trains in bf16, without loss scaling"),
        )


@gate(
    "PR017 fp16-on-a-cpu",
    upstream="raises",
    severity=("error", "warning"),
    cites=(
        Cite("runtime/engine.py", "Type fp16 is not supported on your device.", since="0.16.0"),
        Cite("runtime/engine.py", "Type fp16 is not supported.", until="0.15.4"),
    ),
    needs=("the accelerator",),
    when=lambda ctx: ctx.is_enabled("fp16") and not ctx.is_enabled("bf16"),
)
def fp16_on_cpu(ctx: Context) -> Findings:
    """fp16 on the CPU accelerator.

    `precision.fp16` where the accelerator is the CPU.

    Why: DeepSpeed asks torch whether the processor supports fp16, which needs AVX512-FP16. Elsewhere every rank fails
    at once: `ValueError: Type fp16 is not supported on your device` (run on processors of both kinds). Up to 0.15.4 no
    CPU was accepted.

    Example:
        precision.fp16: true
        zero.stage: 1
        cluster.gpu: cpu
    """
    if ctx.accelerator == "cpu":
        is_unsupported = ctx.target.version < (0, 16, 0)
        yield ctx.finding(
            "fp16 does not run on this DeepSpeed's CPU accelerator"
            if is_unsupported
            else "fp16 on a CPU needs a processor with AVX512-FP16",
            _FP16,
            severity="error" if is_unsupported else "warning",
            notes=["bf16 runs on every processor that DeepSpeed runs on"],
            fix=Fix(
                f"set {ctx.key(_FP16)} to false and {ctx.key(_BF16)} to true",
                {_FP16: False, _BF16: True},
                effect="trains in bf16, without loss scaling",
            ),
        )


@gate(
    "PR018 loss-scale-cannot-fall",
    severity="warning",
    cites=Cite("runtime/fp16/loss_scaler.py", "max(self.cur_scale / self.scale_factor, self.min_scale)"),
    when=lambda ctx: ctx.is_enabled("fp16"),
)
def minimum_above_initial_scale(ctx: Context) -> Findings:
    """A smallest loss scale at or above the first one.

    `precision.min_loss_scale` against 2 to the power of `precision.initial_scale_power`, with dynamic scaling.

    Why: After an overflow the scale is halved, but never below the smallest one. Where that is above the first scale,
    an overflow raises the scale; where they are equal, the second overflow ends the run: `Current loss scale already at
    minimum`. Both are accepted silently (read in 0.19.8).

    Example:
        precision.fp16: true
        precision.initial_scale_power: 4
        precision.min_loss_scale: 256
        zero.stage: 1
    """
    precision = ctx.run.spec.precision
    power = precision.initial_scale_power
    if precision.loss_scale != 0 or not 0 < power <= 60:
        return
    first_scale = 2**power
    minimum = precision.min_loss_scale
    if minimum >= first_scale:
        overflow_effect = "raises it" if minimum > first_scale else "ends the run"
        key = "precision.min_loss_scale"
        yield ctx.finding(
            f"the loss scale starts at {first_scale} and its minimum is {minimum}: an overflow {overflow_effect}",
            key,
            related=[(_INITIAL_SCALE_POWER, f"2 to the power of {power} is {first_scale}")],
            fix=Fix(
                f"set {ctx.key(key)} to 1 and {ctx.key(_INITIAL_SCALE_POWER)} to 16",
                {key: 1, _INITIAL_SCALE_POWER: 16},
                effect="starts at 65536 and may fall to 1",
            ),
        )


@gate(
    "PR019 huge-loss-scale",
    severity=("warning", "info"),
    cites=(
        Cite("runtime/precision_config.py", "return 2**self.initial_scale_power", since="0.17.1"),
        Cite("runtime/config.py", "return 2**initial_scale_power", until="0.17.0"),
    ),
    when=lambda ctx: ctx.is_enabled("fp16"),
)
def huge_loss_scale(ctx: Context) -> Findings:
    """A loss scale far beyond fp16.

    `precision.initial_scale_power` above 24, or a fixed `precision.loss_scale` above 2 to the 24.

    Why: The largest fp16 number is 65504. A dynamic scale of 2 to the 32 overflows in every step until it has been
    halved often enough: DeepSpeed skips those steps, and nothing is trained in them (run on 0.19.8: 6 of 6 steps
    skipped from 2 to the 40). A fixed scale never falls, so that every step may be skipped.

    Example:
        precision.fp16: true
        precision.initial_scale_power: 40
        zero.stage: 2
    """
    precision = ctx.run.spec.precision
    scale = precision.loss_scale
    power = precision.initial_scale_power
    if scale > 2**24:
        key = "precision.loss_scale"
        yield ctx.finding(
            f"a fixed loss scale of {scale:g} overflows fp16, and every such step is skipped",
            key,
            severity="warning",
            fix=ctx.fix_to_set(key, 0, effect="scales dynamically"),
        )
    elif scale == 0 and power > 24:
        yield ctx.finding(
            f"the loss scale starts at 2 to the {power}: about {power - 16} steps are skipped before one trains",
            _INITIAL_SCALE_POWER,
            severity="info" if power <= 32 else "warning",
            notes=["an overflow halves the scale and skips the step"],
            fix=ctx.fix_to_set(_INITIAL_SCALE_POWER, 16, effect="the first steps train"),
        )


@gate(
    "PR069 loss-scale-of-one",
    severity="warning",
    cites=Cite("runtime/fp16/loss_scaler.py", "static_loss_scale"),
    when=lambda ctx: ctx.is_enabled("fp16") and (ctx.stage > 0 or ctx.target.version < (0, 18, 3)),
)
def loss_scale_of_one(ctx: Context) -> Findings:
    """fp16 without a loss scale.

    A fixed `precision.loss_scale` above 0 and at or below 1. From 0.18.3 on not without ZeRO, which scales nothing
    there (PR002).

    Why: fp16 has no number between 0 and 6e-8. Gradients of a trained model are often smaller, and become 0 unless the
    loss is multiplied first: these weights do not train, and nothing says so. A fixed scale of 1 is no scale, a smaller
    one makes it worse; 0 is DeepSpeed's word for dynamic scaling (read in 0.19.8).

    Example:
        precision.fp16: true
        precision.loss_scale: 1.0
        zero.stage: 2
    """
    scale = ctx.run.spec.precision.loss_scale
    if 0 < scale <= 1:
        key = "precision.loss_scale"
        yield ctx.finding(
            f"a fixed loss scale of {scale:g} scales nothing up: gradients below 6e-8 become 0 in fp16",
            key,
            notes=["0 scales dynamically"],
            fix=ctx.fix_to_set(key, 0, effect="scales dynamically"),
        )


@gate(
    "PR036 dynamic-loss-scale-without-window-or-floor",
    upstream="raises",
    cites=(
        Cite("runtime/precision_config.py", "validate_dynamic_loss_scale_params", since="0.19.3"),
        Cite("runtime/fp16/loss_scaler.py", "% self.scale_window", until="0.19.2"),
    ),
    when=lambda ctx: ctx.run.spec.precision.fp16 and ctx.run.spec.precision.loss_scale == 0,
)
def zero_window_or_floor(ctx: Context) -> Findings:
    """Dynamic loss scaling with a window or a floor of 0.

    `precision.loss_scale_window: 0` or `precision.min_loss_scale: 0` with fp16 and a dynamic loss scale.

    Why: DeepSpeed divides by the window, and a scale of 0 turns every gradient into 0 or nan. DeepSpeed refuses both
    while it reads the configuration (run on 0.19.8); older releases divide by zero in the middle of training (read).
    With a fixed `loss_scale`, or without fp16, nothing reads them.

    Example:
        precision.fp16: true
        precision.min_loss_scale: 0
        zero.stage: 2
    """
    for name, default in (("loss_scale_window", 1000), ("min_loss_scale", 1)):
        if getattr(ctx.run.spec.precision, name) == 0:
            key = f"precision.{name}"
            yield ctx.finding(
                f"{ctx.key(key)} is 0, dynamic loss scaling needs at least 1",
                key,
                label="refused",
                fix=ctx.fix_to_set(key, default, "DeepSpeed's default", effect="scales as DeepSpeed does by default"),
            )


@gate(
    "PR037 inputs-cast-to-half-without-fp16",
    upstream="crashes",
    severity="warning",
    cites=Cite("runtime/engine.py", "if self.fp16_auto_cast():"),
    when=lambda ctx: ctx.run.kind == "deepspeed-json" and ctx.ds("fp16.auto_cast") is True,
)
def inputs_cast_without_fp16(ctx: Context) -> Findings:
    """Inputs cast to half precision while fp16 is off.

    A DeepSpeed JSON, not for the Trainer, with `fp16.auto_cast: true` and without `fp16.enabled: true` or "auto".

    Why: The engine casts every positional input that is a tensor of floating point to half precision, and does not ask
    whether fp16 is on. A model in bf16 or fp32 then fails at the first layer: "mat1 and mat2 must have the same dtype,
    but got Half and BFloat16" (run on 0.19.8 with `engine(x)`). Keyword arguments and token ids stay as they are (run),
    and the Trainer passes nothing else; so this is a warning.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "bf16": {"enabled": true},
      "fp16": {"enabled": false, "auto_cast": true},
      "zero_optimization": {"stage": 1}
    }
    """
    if ctx.consumer == "hf" or ctx.is_enabled("fp16") or ctx.is_auto("fp16.enabled"):
        return
    key = "deepspeed.fp16.auto_cast"
    yield ctx.finding(
        f"{ctx.key(key)} casts the inputs to half precision although fp16 is off",
        key,
        notes=[
            "`engine(x)` with an `x` of floating point fails at the first layer; keyword arguments and token ids are "
            "not cast"
        ],
        fix=ctx.fix_to_remove(key, effect="inputs stay in their own format"),
    )


@spec_gate("MD010 loss-scale-without-fp16", severity="warning", unread="only fp16 is scaled")
def loss_scale_without_fp16(ctx: Context) -> Findings:
    """Loss scaling where nothing is scaled.

    `precision.loss_scale`, `initial_scale_power`, `loss_scale_window`, `hysteresis` and `min_loss_scale` without
    `precision.fp16: true`.

    Why: Only fp16 needs its loss scaled; bf16 and fp32 have the range. The values are not rendered.

    Example:
        precision.bf16: true
        precision.initial_scale_power: 12
        zero.stage: 1
    """
    precision = ctx.run.spec.precision
    if precision.fp16:
        return
    for name in ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"):
        if precision.is_written(name):
            key = f"precision.{name}"
            yield ctx.unread(f"{ctx.key(key)} is read with `precision.fp16` only", key)


@gate(
    "PP007 fp16-pipeline-before-0-18-5",
    upstream="raises",
    since="0.18.3",
    until="0.18.4",
    unseen="needs an older DeepSpeed",
)
def fp16_in_a_pipeline(ctx: Context) -> Findings:
    """fp16 through a pipeline on 0.18.3 and 0.18.4.

    `fp16` with pipeline stages on these two releases.

    Why: Backward was rewritten in 0.18.3, and the pipeline engine still called torch's own: "Direct calls to
    tensor.backward() are not supported" at stage 0, "Loss scaling is required" at stage 1 (run on 0.18.3). Fixed in
    0.18.5.

    Example:
        train.gradient_accumulation_steps: 8
        precision.fp16: true
        zero.stage: 1
        parallel.pipeline_parallel_size: 2
    """
    if ctx.pipeline_parallel_size > 1 and ctx.is_enabled("fp16"):
        yield ctx.finding(
            f"DeepSpeed {ctx.target.text} cannot run an fp16 backward pass through a pipeline",
            _FP16,
            related=[("parallel.pipeline_parallel_size", "the pipeline is set here")],
            notes=["it fails in the first step; fixed in 0.18.5"],
            fix=Fix(
                f"use {ctx.key(_BF16)}, or another DeepSpeed",
                {_FP16: None, _BF16: True},
                effect="trains in bf16",
            ),
        )
