# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation that DeepSpeed loses, refuses or does not count."""

from __future__ import annotations

from harness.gates.dtypes import grad_accum_dtype, has_bf16_optimizer, model_dtype
from harness.gates.registry import Cite, Context, Findings, Fix, gate

_MANAGED = "deepspeed.managed_gradient_accumulation"
_FORMAT = "deepspeed.data_types.grad_accum_dtype"


@gate(
    "ZR014 unmanaged-accumulation-where-it-is-refused",
    upstream="asserts",
    cites=Cite(
        "runtime/engine.py", "managed_gradient_accumulation=False supports ZeRO overlap_comm only with ZeRO stage 2"
    ),
    since="0.19.4",
    when=lambda ctx: ctx.ds("managed_gradient_accumulation") is False,
)
def refused_unmanaged_accumulation(ctx: Context) -> Findings:
    """Unmanaged gradient accumulation where it is refused.

    `managed_gradient_accumulation: false` with `zero.overlap_comm: true` at stage 0 or 1, with pipeline stages, or with
    DeepCompile.

    Why: DeepSpeed asserts each of the three at initialisation, after every rank has its weights (run on 0.19.8). The
    message names only stage 2; stage 3 trains, too.

    Example:
        zero.stage: 1
        zero.overlap_comm: true
        deepspeed.managed_gradient_accumulation: false
    """
    effect = "DeepSpeed then decides where a step ends: check the script"
    if ctx.stage < 2 and ctx.ds("zero_optimization.overlap_comm") is True:
        conflict, conflict_key = f"`overlap_comm` at ZeRO stage {ctx.stage}", "zero.overlap_comm"
        fix = Fix(
            f"set {ctx.key(conflict_key)} to `false`",
            {conflict_key: False},
            effect="gradients are reduced after the backward pass",
        )
    elif ctx.pipeline_parallel_size > 1:
        conflict, conflict_key = "a pipeline", "parallel.pipeline_parallel_size"
        fix = ctx.fix_to_remove(_MANAGED, effect=effect)
    elif ctx.ds("compile.deepcompile") is True:
        conflict, conflict_key = "DeepCompile", "deepspeed.compile.deepcompile"
        fix = ctx.fix_to_remove(conflict_key, effect=effect)
    else:
        return
    yield ctx.finding(
        f"{ctx.key(_MANAGED)} is `false`, which DeepSpeed refuses with {conflict}",
        _MANAGED,
        related=[(conflict_key, "set here")],
        fix=fix,
    )


@gate(
    "ZR040 zero-2-keeps-the-last-micro-batch",
    upstream="wrong",
    severity=("error", "warning"),
    since="0.17.6",
    until="0.18.2",
    when=lambda ctx: ctx.stage == 2 and not ctx.is_optimizer_offloaded,
)
def overwritten_accumulation(ctx: Context) -> Findings:
    """ZeRO-2 that trains on the last micro-batch alone.

    `zero.stage: 2` with more than one accumulation step and no offloaded optimizer, on DeepSpeed 0.17.6 to 0.18.2.
    Where the Trainer or accelerate fills in the number of steps, or it follows from unknown ranks, it warns.

    Why: In these releases each micro-batch overwrites the gradients of the one before, where it should add to them: of
    N micro-batches a step, N - 1 are computed and silently dropped. This is so in fp32, bf16 and bf16 autocast, with
    any bucket, with and without overlapped communication, on one rank and two, for a script's calls and the Trainer's
    (run on 0.17.5, 0.17.6, 0.18.0 to 0.18.4 and 0.19.8: after two steps the weights are off by half their length and
    more). 0.17.5 and 0.18.3 add them up, and so do stages 0, 1 and 3 in all of these. An offloaded optimizer has
    another fault, see `offload-loses-accumulated-gradients`. It is DeepSpeed's issue 7718.

    Example:
        zero.stage: 2
        train.gradient_accumulation_steps: 4
    """
    steps = ctx.accumulation
    if steps == 1:
        return
    is_trainer = ctx.consumer == "hf"
    release = "0.18.4" if is_trainer else "0.18.3"
    batches = f"the last of {steps} micro-batches" if steps else "the last micro-batch of each step"
    notes = []
    if not steps:
        notes.append("with one micro-batch a step it is right; how many there are is not known here")
    if is_trainer:
        notes.append("0.18.3 keeps all of them, and divides their gradients twice under the Trainer")
    notes.append(
        "runs with these releases trained on a part of their rows: do not compare their losses with a correct run's"
    )
    key = "zero.stage"
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} trains on {batches} alone at ZeRO stage 2",
        key,
        severity="error" if steps else "warning",
        label="each micro-batch overwrites the gradients of the one before",
        related=[("train.gradient_accumulation_steps", f"{steps} micro-batches a step" if steps else "not known here")],
        notes=notes,
        fix=Fix(
            f"upgrade to DeepSpeed {release}, or set {ctx.key(key)} to 1",
            {key: 1},
            effect="all micro-batches count; every rank holds whole gradients",
        ),
    )


@gate(
    "ZR027 accumulation-steps-that-nobody-counts",
    severity=("error", "info"),
    cites=Cite("runtime/engine.py", "``managed_gradient_accumulation=false``, every ``step()`` is the accumulation"),
    since="0.19.4",
    when=lambda ctx: ctx.ds("managed_gradient_accumulation") is False and ctx.pipeline_parallel_size == 1,
)
def uncounted_accumulation_steps(ctx: Context) -> Findings:
    """Accumulation steps that DeepSpeed does not count.

    `managed_gradient_accumulation: false` with more than one accumulation step.

    Why: Every `engine.step()` is then an optimizer step: DeepSpeed no longer counts micro-batches, and still divides
    the loss by `gradient_accumulation_steps`. The script has to call `step()` only after that many micro-batches. The
    harness's own loop calls it after each, as scripts for managed accumulation do, which takes many small steps instead
    of one (run on 0.19.8 with two micro-batches: other weights).

    Example:
        zero.stage: 2
        train.gradient_accumulation_steps: 4
        deepspeed.managed_gradient_accumulation: false
    """
    steps = ctx.run.batch.accumulation
    if steps is None or steps < 2:
        return
    is_own_loop = ctx.run.kind == "spec"
    if is_own_loop:
        notes = []
        effect = f"an optimizer step every {steps} micro-batches, as set"
    else:
        notes = [f"the script has to call `engine.step()` once in {steps} micro-batches"]
        effect = "DeepSpeed counts micro-batches"
    yield ctx.finding(
        f"{ctx.key(_MANAGED)} is `false`: each `engine.step()` is an optimizer step, {steps} accumulation steps or not",
        _MANAGED,
        severity="error" if is_own_loop else "info",
        label="DeepSpeed does not count micro-batches",
        related=[("train.gradient_accumulation_steps", f"{steps} set here")],
        notes=notes,
        fix=Fix("remove it", {_MANAGED: None}, effect=effect),
    )


@gate(
    "OF029 offload-loses-accumulated-gradients",
    upstream="wrong",
    since="0.15.2",
    until="0.18.9",
    when=lambda ctx: ctx.stage == 2 and ctx.is_optimizer_offloaded,
)
def lost_accumulation(ctx: Context) -> Findings:
    """Offload that loses accumulated gradients.

    `zero.offload_optimizer` at stage 2 with more than two accumulation steps, on DeepSpeed 0.15.2 to 0.18.9.

    Why: These releases keep the gradient of the first micro-batch on the CPU and add it to each of the others without
    storing the sum: the step sees the first and the last micro-batch, the ones between are lost, and the norm is too
    small. Fixed in 0.19.0 (run on 0.16.9, 0.17.5, 0.17.6, 0.18.0 to 0.18.4 and 0.19.0; the first and last release come
    from the history of `stage_1_and_2.py`, pull requests 6550 and 7967). Stages 1 and 3 are right in all of these.

    Example:
        zero.stage: 2
        zero.offload_optimizer.device: cpu
        train.gradient_accumulation_steps: 4
    """
    steps = ctx.run.batch.accumulation
    if steps is None or steps <= 2:
        return
    stage_key = "zero.stage"
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} loses the gradients of {steps - 2} of {steps} micro-batches with this offload",
        "zero.offload_optimizer.device",
        label="only the first and the last count",
        related=[("train.gradient_accumulation_steps", f"{steps} micro-batches a step"), (stage_key, "stage 2")],
        fix=ctx.fix_to_set(
            stage_key, 3, "or upgrade to DeepSpeed 0.19.0", effect="all micro-batches count; parameters are sharded too"
        ),
    )


@gate(
    "PR025 accumulation-format-at-stage-0",
    upstream="raises",
    cites=(
        Cite("runtime/engine.py", "unsupported mix of"),
        Cite("runtime/engine.py", "Bfloat16 wrapper must use a gradient accumulation type of fp32", until="0.17.5"),
    ),
    when=lambda ctx: ctx.stage == 0 and ctx.has_key("data_types.grad_accum_dtype"),
)
def accumulation_format_at_stage_0(ctx: Context) -> Findings:
    """Gradients accumulated in another format than the model's, without ZeRO.

    `data_types.grad_accum_dtype` at ZeRO stage 0 against the format that the model is trained in.

    Why: Without ZeRO gradients are accumulated where they appear, in the model's format. DeepSpeed refuses anything
    else when it builds the engine: `NotImplementedError: unsupported mix of model_dtype ... and grad_accum_dtype` (run
    on 0.19.8). bf16 with fp32 accumulation worked up to 0.18.4; bf16 with bf16 accumulation is refused up to 0.17.5:
    "Bfloat16 wrapper must use a gradient accumulation type of fp32" (read).

    Example:
        zero.stage: 0
        deepspeed.data_types.grad_accum_dtype: bf16

    Use instead:
        precision.bf16: true
        zero.stage: 1
        deepspeed.data_types.grad_accum_dtype: fp32
    """
    model, gradients = model_dtype(ctx), grad_accum_dtype(ctx)
    is_old_bf16 = (model, gradients) == ("bf16", "bf16") and ctx.target.version < (0, 17, 6)
    is_old_bf16 = is_old_bf16 and ctx.pipeline_parallel_size == 1
    if model is None or (gradients in (None, model) and not is_old_bf16):
        return
    if (model, gradients) == ("bf16", "fp32") and ctx.target.version < (0, 18, 5):
        return
    stage_key = "zero.stage"
    if is_old_bf16:
        fix = ctx.fix_to_remove(_FORMAT, effect="accumulates in fp32")
    elif gradients == "fp32":
        fix = ctx.fix_to_set(stage_key, 1, effect="ZeRO accumulates in fp32")
    else:
        fix = ctx.fix_to_remove(_FORMAT, effect=f"accumulates in {model}")
    yield ctx.finding(
        f"a model in {model} does not accumulate gradients in {gradients} at ZeRO stage 0",
        _FORMAT,
        related=[(stage_key, "the stage is set here"), (f"precision.{model}", "the model's format")],
        notes=["DeepSpeed refuses it when it builds the engine"],
        fix=fix,
    )


@gate(
    "PR026 odd-accumulation-format",
    severity=("warning", "error"),
    cites=Cite("runtime/engine.py", "model_dtype, gradient_accumulation_dtype = self.get_data_types()"),
    when=lambda ctx: ctx.stage > 0 and ctx.has_key("data_types.grad_accum_dtype"),
)
def odd_accumulation_format(ctx: Context) -> Findings:
    """Gradients accumulated in an odd format under ZeRO.

    `data_types.grad_accum_dtype` at ZeRO stages 1 to 3: the model's own format, or fp32.

    Why: Other formats are accepted, and change nothing or lose precision: with a bf16 model `fp16` and `int8` gave the
    losses of the default to the last digit, while fp32 did change them (run on 0.19.8, stage 2). At stage 1 `int8` ends
    in the first step: "result type Float can't be cast to the desired output type Char" (run on 0.19.8).

    Example:
        precision.bf16: true
        zero.stage: 2
        deepspeed.data_types.grad_accum_dtype: fp16
    """
    model, gradients = model_dtype(ctx), grad_accum_dtype(ctx)
    if model is not None and gradients not in (None, "fp32", model):
        is_refused = gradients == "int8" and ctx.stage == 1
        yield ctx.finding(
            f"gradients of a model in {model} are accumulated in {gradients}",
            _FORMAT,
            severity="error" if is_refused else "warning",
            label="fails in the first step" if is_refused else "accepted, without effect",
            related=[(f"precision.{model}", "the model's format")],
            notes=["only fp32 makes accumulation more precise"],
            fix=ctx.fix_to_set(_FORMAT, "fp32", effect="accumulates in fp32"),
        )


@gate(
    "PR030 immediate-update-not-read",
    severity="warning",
    unread="BF16_Optimizer alone reads it",
    cites=Cite("runtime/bf16_optimizer.py", "self.immediate_grad_update = bfloat16_config.immediate_grad_update"),
    since="0.18.5",
)
def unread_immediate_update(ctx: Context) -> Findings:
    """A switch for an optimizer that is not used.

    `bf16.immediate_grad_update` where DeepSpeed does not take its BF16_Optimizer: that is everywhere but at ZeRO stage
    1 with fp32 accumulation and no offload, and in pipelines at stage 0.

    Why: BF16_Optimizer alone reads the key. Elsewhere it is accepted and has no effect (run on 0.19.8 at stage 1).

    Example:
        precision.bf16: true
        zero.stage: 2
        deepspeed.bf16.immediate_grad_update: true
    """
    if ctx.is_enabled("bf16") and ctx.ds("bf16.immediate_grad_update") is True and not has_bf16_optimizer(ctx):
        key = "deepspeed.bf16.immediate_grad_update"
        yield ctx.unread(
            f"{ctx.key(key)} is not read at ZeRO stage {ctx.stage} here",
            key,
            related=[("zero.stage", "the stage is set here")],
            notes=["only stage 1 with fp32 accumulation and without offload has the optimizer that reads it"],
        )


@gate(
    "PR032 many-micro-batches-summed-in-bf16",
    severity="info",
    cites=Cite("runtime/engine.py", "BF16 gradient accumulation is not safe numerically"),
)
def many_micro_batches_in_bf16(ctx: Context) -> Findings:
    """Many micro-batches summed up in bf16.

    `precision.bf16` with 64 or more accumulation steps and no `data_types.grad_accum_dtype`, at ZeRO stages 1 to 3.

    ## Why it matters
    bf16 has 8 bits of precision: added to a sum of 64 micro-batches, a new one loses most of its digits. DeepSpeed
    accumulates in the model's format unless `data_types.grad_accum_dtype` is fp32, which costs 4 bytes a parameter,
    divided over the data-parallel ranks.

    Why: Nothing fails: the sum is only less exact (fp32 accumulation changed the losses of a run on 0.19.8 from the
    second step on).

    Example:
        train.per_device_train_batch_size: 1
        train.gradient_accumulation_steps: 128
        precision.bf16: true
        zero.stage: 2
    """
    if not ctx.is_enabled("bf16") or ctx.stage == 0 or ctx.has_key("data_types.grad_accum_dtype"):
        return
    steps = ctx.run.batch.accumulation
    if steps is not None and steps >= 64:
        yield ctx.finding(
            f"{steps} micro-batches are summed up in bf16, which has 8 bits of precision",
            "train.gradient_accumulation_steps",
            related=[("precision.bf16", "gradients are accumulated in the model's format")],
            fix=ctx.fix_to_set(_FORMAT, "fp32", effect="accumulates in fp32, with more memory"),
        )
