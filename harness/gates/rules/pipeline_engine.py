# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's pipeline engine: what it refuses, computes wrong or does not read."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate

_STAGES = "parallel.pipeline_parallel_size"
_PIPELINE = (_STAGES, "the pipeline is set here")


@gate(
    "PP001 zero-sharded-gradients-in-a-pipeline",
    upstream="asserts",
    cites=Cite("runtime/pipe/engine.py", "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"),
    when=lambda ctx: ctx.pipeline_parallel_size > 1 and ctx.stage > 1,
)
def sharded_gradients(ctx: Context) -> Findings:
    """ZeRO stage 2 or 3 under a PipelineModule.

    `zero.stage` 2 or 3 together with `parallel.pipeline_parallel_size` above 1.

    Why: A pipeline runs the backward passes of several micro-batches before one optimizer step, and adds their
    gradients up in place. ZeRO-2 shards gradients as they appear and ZeRO-3 the parameters too, so there is no whole
    gradient to add to. DeepSpeed asserts this when the pipeline engine is built, after every rank has built its
    weights; under `python -O` the assertion is gone and stage 2 fails in the first step while stage 3 hangs (both seen
    on 0.19.8).

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 2
        parallel.pipeline_parallel_size: 2
    """
    yield ctx.finding(
        f"ZeRO stage {ctx.stage} cannot run under a PipelineModule of {ctx.pipeline_parallel_size} stages",
        "zero.stage",
        label={2: "shards gradients", 3: "shards gradients and parameters"}[ctx.stage],
        related=[_PIPELINE],
        notes=["DeepSpeed asserts this only when the engine is built, after every rank has its weights"],
        fix=ctx.fix_to_set("zero.stage", 1, effect="the same steps with more memory"),
    )


@gate(
    "PP005 pipeline-with-wall-clock-breakdown",
    upstream="asserts",
    cites=Cite("utils/timer.py", "timer has already been started"),
    since="0.15.2",
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
)
def wall_clock_breakdown_in_a_pipeline(ctx: Context) -> Findings:
    """Timers that a pipeline engine starts twice.

    `wall_clock_breakdown: true` or an enabled `flops_profiler` (which switches it on) with pipeline stages.

    Why: The pipeline engine and the engine below it start the same timer: "bwd_microstep timer has already been
    started", an assertion in the first step (run on 0.18.3, 0.19.3 and 0.19.8). From 0.15.2 to 0.18.2 it fails as well,
    with a TypeError, unless `steps_per_print` is a number.

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.pipeline_parallel_size: 2
        deepspeed.wall_clock_breakdown: true
    """
    keys = [f"deepspeed.{name}" for name in ("wall_clock_breakdown", "flops_profiler.enabled") if ctx.ds(name) is True]
    if not keys or (ctx.target.version < (0, 18, 3) and ctx.ds("steps_per_print")):
        return
    key, *other_keys = keys
    yield ctx.finding(
        f"a pipeline fails in its first step with {ctx.key(key)}",
        key,
        label="starts a timer twice",
        related=[(_STAGES, "the pipeline"), *[(other, "so does this") for other in other_keys]],
        notes=["DeepSpeed asserts `bwd_microstep timer has already been started`"],
        fix=Fix(f"set {ctx.key(key)} to false", dict.fromkeys(keys, False), safe=True, effect="no timers"),
    )


@gate(
    "PP006 reentrant-checkpointing-in-a-pipeline",
    upstream="crashes",
    severity=("error", "warning"),
    cites=(
        Cite("runtime/pipe/module.py", "otherwise, the backward of the embedding layer won't receive gradients"),
        Cite("runtime/pipe/engine.py", "self._config.pipeline['use_reentrant'] = True"),
    ),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
)
def reentrant_checkpointing(ctx: Context) -> Findings:
    """Reentrant activation checkpointing of a pipeline's first layers.

    `pipeline.activation_checkpoint_interval` above 0 with pipeline stages, unless `pipeline.use_reentrant` is false.

    Why: The reentrant function gives gradients only where an input needs one. The first interval of a language model
    takes nothing but token ids, so its embedding gets none: "element 0 of tensors does not require grad" in the first
    step (run on 0.19.8; up to 0.19.7 the CPU accelerator fails on it with a TypeError). DeepSpeed recognises Megatron's
    `GPTModelPipe` by its name and does not checkpoint its embedding; a PipelineModule with `checkpointable_layers` can
    exclude it too, so this is a warning for a JSON.

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.pipeline_parallel_size: 2
        deepspeed.pipeline.activation_checkpoint_interval: 1
    """
    interval = ctx.ds("pipeline.activation_checkpoint_interval", 0)
    if not isinstance(interval, int) or interval < 1 or ctx.ds("pipeline.use_reentrant") is False:
        return
    is_broken_on_cpu = ctx.accelerator == "cpu" and ctx.target.version < (0, 19, 8)
    switch = "deepspeed.pipeline.use_reentrant"
    yield ctx.finding(
        f"reentrant checkpointing every {interval} layers leaves a pipeline's embedding without gradient",
        "deepspeed.pipeline.activation_checkpoint_interval",
        severity="error" if ctx.run.kind == "spec" or is_broken_on_cpu else "warning",
        related=[(switch, "set here"), _PIPELINE],
        notes=["the first step fails: `element 0 of tensors does not require grad`"],
        fix=ctx.fix_to_set(switch, False, effect="the same gradients"),
    )


@gate(
    "PP008 gradients-scaled-once-a-stage",
    upstream="wrong",
    cites=Cite("runtime/engine.py", "def _backward_prologue_per_tensor"),
    since="0.18.5",
    until="0.19.2",
    unseen="needs an older DeepSpeed",
)
def gradients_scaled_once_a_stage(ctx: Context) -> Findings:
    """Gradients that a pipeline divides once per stage.

    Pipeline stages with more than one accumulation step on DeepSpeed 0.18.5 to 0.19.2.

    Why: The last stage divides the gradients by the accumulation steps and sends them on, and each stage before it
    divides again: with 4 stages and 8 steps the first layers train with a 512th of their gradient. Adam hides much of
    it, clipping and SGD do not. `_backward_prologue_per_tensor` divides, and only from 0.19.3 on does the pipeline
    engine override it and leave gradients alone before the last stage (DeepSpeed's issue 8152). Run on 0.19.2 with 2
    stages, 4 steps and SGD: the first stage moves a quarter as far as in plain torch; on 0.19.8 it moves as far.

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.pipeline_parallel_size: 2

    Use instead:
        zero.stage: 1
    """
    stages = ctx.pipeline_parallel_size
    steps = ctx.run.batch.accumulation or 1
    if stages > 1 and steps != 1:
        yield ctx.finding(
            f"DeepSpeed {ctx.target.text} divides the first stage's gradients by {steps} "
            f"once on each of the {stages} stages, instead of once",
            _STAGES,
            related=[("train.gradient_accumulation_steps", "the accumulation steps")],
            notes=["every stage divides gradients that the next one has already divided; fixed in 0.19.3"],
            fix=Fix(
                f"use DeepSpeed 0.19.3 or newer, or set {ctx.key(_STAGES)} to 1", {_STAGES: 1}, effect="no pipeline"
            ),
        )


@gate(
    "PP009 overlapped-communication-in-a-pipeline",
    severity="warning",
    unread="a pipeline switches it off",
    cites=Cite("runtime/engine.py", "Pipeline parallelism does not support overlapped communication"),
)
def overlapped_communication(ctx: Context) -> Findings:
    """Overlapped communication in a pipeline.

    `zero.overlap_comm: true` with pipeline stages at ZeRO stage 1.

    Why: The pipeline engine reduces gradients after all micro-batches. DeepSpeed warns and switches the overlap off
    (run on 0.19.8).

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        zero.overlap_comm: true
        parallel.pipeline_parallel_size: 2
    """
    if ctx.pipeline_parallel_size > 1 and ctx.stage == 1 and ctx.ds("zero_optimization.overlap_comm") is True:
        key = "zero.overlap_comm"
        yield ctx.finding(
            f"{ctx.key(key)} has no effect in a pipeline",
            key,
            label="switched off",
            related=[_PIPELINE],
            fix=ctx.fix_to_remove(key, safe=True, effect="the same"),
        )


@gate(
    "PP010 block-that-a-pipeline-ignores",
    severity="warning",
    unread="a pipeline does not read the block",
    cites=Cite("__init__.py", "if not isinstance(model, PipelineModule):"),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
)
def ignored_blocks(ctx: Context) -> Findings:
    """Blocks that a pipeline does not read.

    `hybrid_engine`, `compile.deepcompile`, a `data_efficiency` curriculum or the `activation_checkpointing` block with
    pipeline stages.

    Why: The pipeline engine has its own loop, its own data loader and its own checkpointing (`pipeline.
    activation_checkpoint_interval`). Each of these blocks is accepted and changes nothing: engine class and losses are
    the same (run on 0.19.8). Calling `engine.compile()` with DeepCompile fails in a pipeline.

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.pipeline_parallel_size: 2
        deepspeed.hybrid_engine.enabled: true
    """
    blocks = {
        "hybrid_engine": ctx.is_enabled("hybrid_engine"),
        "compile.deepcompile": ctx.ds("compile.deepcompile") is True,
        "activation_checkpointing": ctx.ds("activation_checkpointing"),
        "data_efficiency": ctx.is_enabled("data_efficiency")
        and ctx.is_enabled("data_efficiency.data_sampling.curriculum_learning"),
    }
    for name, is_on in blocks.items():
        if is_on:
            key = f"deepspeed.{name}"
            yield ctx.unread(
                f"a pipeline does not read {ctx.key(key)}",
                key,
                related=[_PIPELINE],
                fix=ctx.fix_to_remove(key, safe=name != "data_efficiency", effect="the same"),
            )


_DEFAULTS_OF_UNREAD_KEYS = {"stages": "auto", "partition": "best", "seed_layers": False}


@gate(
    "PP013 pipeline-key-that-nothing-reads",
    severity="warning",
    unread="the PipelineModule decides",
    cites=Cite("runtime/config.py", '"partition": "best",'),
    when=lambda ctx: ctx.has_key("pipeline"),
)
def unread_pipeline_keys(ctx: Context) -> Findings:
    """Keys of the `pipeline` block that nothing reads.

    `pipeline.stages`, `pipeline.partition` and `pipeline.seed_layers`.

    Why: DeepSpeed has defaults for the three and reads none of them: the arguments of the script's PipelineModule
    decide (`num_stages`, `partition_method`, `seed_layers`). Losses are the same with any value (run on 0.19.8).
    `stages: 2` in a JSON makes no pipeline.

    Example:
        deepspeed.pipeline.stages: 2

    Use instead:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.pipeline_parallel_size: 2
    """
    for name, default in _DEFAULTS_OF_UNREAD_KEYS.items():
        if ctx.ds(f"pipeline.{name}", default) == default:
            continue
        key = f"deepspeed.pipeline.{name}"
        title = f"remove {ctx.key(key)}"
        if name == "stages" and ctx.run.kind == "spec":
            title += f", and set `{_STAGES}`"
        yield ctx.unread(
            f"DeepSpeed does not read {ctx.key(key)}; the script's PipelineModule decides",
            key,
            fix=Fix(title, {key: None}, safe=True, effect="the same"),
        )


@spec_gate("PP016 pipeline-with-what-needs-the-whole-model", when=lambda ctx: ctx.pipeline_parallel_size > 1)
def whole_model_options_in_a_pipeline(ctx: Context) -> Findings:
    """Options that need the whole model, in a pipeline.

    `model.lora`, `train.torch_compile`, `train.gradient_checkpointing_use_reentrant` and `train.offload_activations`
    are off when there are pipeline stages.

    Why: Adapters and compilation need one whole model, which no rank of a pipeline has. A pipeline recomputes layers
    with DeepSpeed's non-reentrant function; with the reentrant one, which also offloads activations, the embedding gets
    no gradient (see PP006).

    Example:
        model.name_or_path: Qwen/Qwen2.5-1.5B
        model.lora: {r: 8}
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.pipeline_parallel_size: 2
    """
    train = ctx.run.spec.train
    options = {
        "model.lora": ctx.run.spec.model.lora is not None,
        "train.torch_compile": train.torch_compile,
        "train.gradient_checkpointing_use_reentrant": train.gradient_checkpointing_use_reentrant,
        "train.offload_activations": train.offload_activations,
    }
    for key, is_on in options.items():
        if is_on:
            yield ctx.finding(
                f"{ctx.key(key)} does not work with {ctx.pipeline_parallel_size} pipeline stages",
                key,
                related=[_PIPELINE],
                notes=["`zero.stage: 3` divides a large model and works with it"],
                fix=ctx.fix_to_remove(key, effect="trains without it"),
            )


@spec_gate(
    "PP017 bf16-pipeline-at-stage-0",
    upstream="crashes",
    cites=Cite("runtime/bf16_optimizer.py", "current_rank_sd = state_dict_list[dp_rank]"),
    when=lambda ctx: ctx.pipeline_parallel_size > 1 and ctx.stage == 0,
)
def bf16_pipeline_at_stage_0(ctx: Context) -> Findings:
    """bf16 in a pipeline without ZeRO.

    `precision.bf16` with pipeline stages at ZeRO stage 0.

    Why: DeepSpeed takes its `BF16_Optimizer` there, which shards masters and states over the data-parallel ranks as
    stage 1 does, and saves them so. On load it checks whether ZeRO is on, finds stage 0, and passes the state of one
    rank to code that expects those of all ranks: `KeyError: 0` (run on 0.19.8). The harness works around that when it
    resumes, but neither `harness export` nor a resume with other parallel degrees reads such a checkpoint. Stage 1 has
    the same shards in files that all of them read.

    Example:
        train.gradient_accumulation_steps: 8
        precision.bf16: true
        parallel.pipeline_parallel_size: 2
    """
    if ctx.run.spec.precision.bf16:
        yield ctx.finding(
            f"checkpoints of a bf16 pipeline of {ctx.pipeline_parallel_size} stages at ZeRO stage 0 cannot be exported",
            "precision.bf16",
            related=[_PIPELINE, ("zero.stage", "the stage")],
            notes=["DeepSpeed shards the optimizer all the same, and fails to load what it saved: `KeyError: 0`"],
            fix=ctx.fix_to_set("zero.stage", 1, effect="the same shards, in the usual files"),
        )
