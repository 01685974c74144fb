# SPDX-License-Identifier: Apache-2.0
"""fp16 and bf16 at ZeRO stage 0, where the optimizers of `runtime/fp16` step."""

from __future__ import annotations

from harness.gates.dtypes import grad_accum_dtype
from harness.gates.registry import Cite, Context, Findings, Fix, gate

_FP16 = "precision.fp16"
_BF16 = "precision.bf16"
_STAGE = "zero.stage"


@gate(
    "PR002 unscaled-fp16-without-zero",
    cites=Cite("runtime/engine.py", "loss = self.optimizer.scale_if_loss(loss)"),
    since="0.18.3",
    when=lambda ctx: ctx.run.spec.precision.fp16 and not ctx.run.spec.precision.bf16 and ctx.stage == 0,
)
def unscaled_fp16_at_stage_0(ctx: Context) -> Findings:
    """fp16 without ZeRO.

    `precision.fp16` with `zero.stage: 0`, unless the loss scale is fixed at 1.

    Why: From 0.18.3 on `engine.backward` multiplies the loss by the loss scale for ZeRO optimizers only, while the fp16
    optimizers of stage 0 still divide the gradients by it: SGD trains nothing, Adam is throttled by its epsilon,
    clipping never clips. No error, no warning, exit code 0. 0.18.2 scales the loss (run). A pipeline uses the same
    `backward`: with SGD its weights move a hundredth as far as at stage 1 (run on 0.19.8).

    Example:
        precision.fp16: true
        zero.stage: 0
    """
    if _is_loss_scale_one(ctx):
        return
    yield ctx.finding(
        "at ZeRO stage 0, fp16 steps with gradients that are far too small",
        _FP16,
        related=[(_STAGE, "the stage is set here")],
        notes=[
            f"DeepSpeed {ctx.target.text} divides the gradients by a loss scale that it never multiplied the loss with"
        ],
        fix=ctx.fix_to_set(_STAGE, 1, effect="gradients are scaled correctly"),
    )


def _fix_to_stage_1(ctx: Context) -> Fix:
    """Stage 1 scales the loss, so fp16 then needs a scale (PR069)."""
    fix, scale_key = ctx.fix_to_set(_STAGE, 1, effect="the first step is the first step"), "precision.loss_scale"
    if not (ctx.run.spec.precision.fp16 and 0 < ctx.run.spec.precision.loss_scale <= 1):
        return fix
    return fix._replace(title=f"{fix.title} and {ctx.key(scale_key)} to 0", sets={**fix.sets, scale_key: 0})


def _is_loss_scale_one(ctx: Context) -> bool:
    """Does the loss scale begin at 1, or stay there?"""
    precision = ctx.run.spec.precision
    if precision.loss_scale == 0:
        return precision.initial_scale_power == 0
    return precision.loss_scale == 1


@gate(
    "PR003 hidden-first-step-in-16-bit",
    severity="warning",
    cites=Cite("runtime/fp16/fused_optimizer.py", "self.initialize_optimizer_states()"),
    since="0.18.6",
    when=lambda ctx: ctx.run.kind != "spec" and ctx.stage == 0,
)
def hidden_first_step_in_16_bit(ctx: Context) -> Findings:
    """16-bit training without ZeRO: a hidden optimizer step.

    A DeepSpeed JSON with stage 0, an optimizer that keeps a state, and `bf16.enabled` outside a pipeline, or fp16 with
    a loss scale of 1. (For other loss scales see `unscaled-fp16-without-zero`. `harness launch` undoes the hidden step
    before the first one.)

    Why: The 16-bit optimizers of stage 0 call `optimizer.step()` with zero gradients while they are built, to allocate
    the states. Adam's step count is then one ahead, so that the first update is a quarter too small, and AdamW has
    decayed the weights once before training (run on 0.19.8; a pipeline in bf16 takes another optimizer, which does
    not). Stage 1 on one data-parallel rank or many does not do this and costs no more memory.

    Example: {"train_batch_size": 8, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
      "zero_optimization": {"stage": 0}
    }
    """
    precision = ctx.run.spec.precision
    optimizer = ctx.optimizer
    is_stateful = optimizer.name != "sgd" or optimizer.params.get("momentum")
    is_bf16 = precision.bf16 and ctx.pipeline_parallel_size == 1
    if precision.fp16 == precision.bf16 or not is_stateful:
        return
    if is_bf16 or (precision.fp16 and _is_loss_scale_one(ctx)):
        name, key = ("bf16", _BF16) if precision.bf16 else ("fp16", _FP16)
        yield ctx.finding(
            f"{name} at ZeRO stage 0 takes a hidden optimizer step before the first one",
            key,
            related=[(_STAGE, "the stage is set here")],
            notes=["Adam counts one step ahead and weight decay is applied once too often"],
            fix=_fix_to_stage_1(ctx),
        )


@gate(
    "PR065 fp16-without-zero-never-steps",
    upstream="wrong",
    cites=Cite("runtime/fp16/fused_optimizer.py", "if self.use_grad_scaling:"),
    since="0.17.6",
    until="0.18.1",
    when=lambda ctx: ctx.stage == 0 and ctx.run.spec.precision.fp16 and not ctx.run.spec.precision.bf16,
)
def fp16_at_stage_0_never_steps(ctx: Context) -> Findings:
    """fp16 without ZeRO that never steps.

    fp16 at ZeRO stage 0 with DeepSpeed's fused Adam, on DeepSpeed 0.17.6 to 0.18.1.

    Why: The fp16 optimizer of stage 0 returns after its overflow check, whether there was an overflow or not: no weight
    changes, the gradient norm is 0, and no step counts as skipped (run on 0.17.6, 0.18.0 and 0.18.1; 0.17.5 was read,
    0.18.2 steps). Optimizers of torch are wrapped by another class and train (run).

    Example:
        precision.fp16: true
        zero.stage: 0
    """
    if _is_fused_adam(ctx):
        yield ctx.finding(
            f"DeepSpeed {ctx.target.text} never steps in fp16 at ZeRO stage 0",
            _FP16,
            label="the optimizer returns before it steps",
            related=[(_STAGE, "the stage is set here")],
            notes=["no weight changes, and no step is counted as skipped"],
            fix=ctx.fix_to_set(_STAGE, 1, effect="trains; optimizer states are sharded"),
        )


def _is_fused_adam(ctx: Context) -> bool:
    """Does DeepSpeed build its own Adam for the device, which its fp16 optimizer of stage 0 wraps?"""
    return ctx.optimizer.name in ("adam", "adamw") and ctx.ds("optimizer.params.torch_adam") is not True


@gate(
    "PR063 fixed-loss-scale-without-zero",
    upstream="crashes",
    cites=Cite("runtime/engine.py", "Creating fp16 optimizer with static loss scale", until="0.17.0"),
    until="0.17.0",
    when=lambda ctx: ctx.stage == 0 and ctx.run.spec.precision.fp16 and not ctx.run.spec.precision.bf16,
)
def fixed_loss_scale_at_stage_0(ctx: Context) -> Findings:
    """A fixed loss scale without ZeRO.

    A loss scale above 0 at ZeRO stage 0, with DeepSpeed's fused Adam, up to DeepSpeed 0.17.0.

    Why: DeepSpeed passes its timers to the fp16 optimizer of stage 0 only if the loss scale is dynamic: the first step
    ends with `TypeError: 'NoneType' object is not callable` (run on 0.14.5, 0.16.0 and 0.17.0; 0.17.1 always passes
    them). Optimizers of torch are wrapped by another class and train (run).

    Example:
        precision.fp16: true
        precision.loss_scale: 128
        zero.stage: 0
    """
    if ctx.run.spec.precision.loss_scale and _is_fused_adam(ctx):
        key = "precision.loss_scale"
        yield ctx.finding(
            f"{ctx.key(key)} is fixed, with which DeepSpeed {ctx.target.text} ends at its first step",
            key,
            related=[(_STAGE, "the stage is set here")],
            notes=["its fp16 optimizer of stage 0 calls timers that it was not given"],
            fix=ctx.fix_to_set(_STAGE, 1, effect="keeps the loss scale; optimizer states are sharded"),
        )


@gate(
    "PR064 hidden-first-step-before-0-18-6",
    severity="warning",
    cites=Cite("runtime/fp16/fused_optimizer.py", "self.initialize_optimizer_states()"),
    until="0.18.5",
    when=lambda ctx: ctx.run.kind != "spec" and ctx.stage == 0,
)
def hidden_first_step_in_older_releases(ctx: Context) -> Findings:
    """16-bit training without ZeRO: a hidden optimizer step, on older releases.

    A DeepSpeed JSON with stage 0 and an optimizer that keeps a state: fp16 (from 0.18.3 on with a loss scale of 1), and
    from 0.17.6 on bf16 with `data_types.grad_accum_dtype: fp32`.

    Why: As in bf16 from 0.18.6 on (PR003), the 16-bit optimizers of stage 0 call `optimizer.step()` with zero gradients
    while they are built: Adam's first update is a quarter too small. Three steps cover 0.84 of the distance of plain
    torch (run in fp16 on 0.14.5 to 0.18.2, with Adam of torch and of DeepSpeed, in bf16 on 0.17.6 to 0.18.2, not on
    0.17.0). Stage 1 does not do this and costs no more memory.

    Example: {"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 1}, "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
      "zero_optimization": {"stage": 0}
    }
    """
    precision, optimizer = ctx.run.spec.precision, ctx.optimizer
    is_stateful = optimizer.name != "sgd" or optimizer.params.get("momentum")
    never_steps = (0, 17, 6) <= ctx.target.version < (0, 18, 2) and _is_fused_adam(ctx)  # PR065
    is_scaled = ctx.target.version < (0, 18, 3) or _is_loss_scale_one(ctx)
    is_fp16 = precision.fp16 and is_scaled and not never_steps
    has_fp32_gradients = grad_accum_dtype(ctx) == "fp32" and ctx.pipeline_parallel_size == 1
    is_bf16 = precision.bf16 and has_fp32_gradients and ctx.target.version >= (0, 17, 6)
    if precision.fp16 != precision.bf16 and is_stateful and (is_fp16 or is_bf16):
        name, key = ("bf16", _BF16) if precision.bf16 else ("fp16", _FP16)
        yield ctx.finding(
            f"{name} at ZeRO stage 0 takes a hidden optimizer step before the first one",
            key,
            related=[(_STAGE, "the stage is set here")],
            notes=["Adam counts one step ahead and weight decay is applied once too often"],
            fix=_fix_to_stage_1(ctx),
        )
